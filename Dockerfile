# A Debian with ubiverbs, and verbs programs to try it with.
#
#   docker build --tag ubiverbs .
#   docker run --rm ubiverbs ibv_devinfo            # any program runs on ubiverbs
#   docker run --rm -it ubiverbs bash               # and so does what is typed into a shell
#   docker run --rm ubiverbs ubiverbs doctor
#
# No privileges are needed. Processes of one container reach one another through shared memory, those of two containers
# of a network over UDP port 4791. docs/ci.md has more.
ARG RUST=1.95
FROM rust:${RUST}-bookworm AS build
WORKDIR /source
COPY . .
# The repository stays outside, so the date of what is packed is said here (seconds of UTC).
ARG SOURCE_DATE_EPOCH=1700000000
RUN cargo xtask dist && mkdir /packages && cp target/packages/ubiverbs_*.deb /packages/ubiverbs.deb

FROM debian:bookworm-slim
COPY --from=build /packages/ubiverbs.deb /tmp/ubiverbs.deb
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        /tmp/ubiverbs.deb ibverbs-utils rdmacm-utils perftest iproute2 \
    && rm -rf /var/lib/apt/lists/* /tmp/ubiverbs.deb \
    && ubiverbs run -- ibv_devices | grep ubi_
ENTRYPOINT ["ubiverbs", "run", "--"]
CMD ["ibv_devinfo"]
