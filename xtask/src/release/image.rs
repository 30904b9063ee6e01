//! The image, made without a container engine: a small Debian with verbs programs as the first layer, what the Debian
//! package has as the second, and the entry point of the Dockerfile. It is an archive of the form OCI: `podman load`,
//! `docker load`, `skopeo` and `kind load image-archive` take it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{digest, name_of};
use crate::packages;
use crate::prerequisites;
use crate::process::{self, run};
use crate::toolchain::Machine;

/// The release of Debian, and what is installed of it: as in the Dockerfile.
const DEBIAN: &str = "bookworm";
const PROGRAMS: &str = "ibverbs-utils,rdmacm-utils,perftest,iproute2";

/// Media types of the parts.
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Makes it out of the Debian package that is in `place`, for the machine that we run on.
pub fn build(root: &Path, place: &Path, version: &str, moment: u64, machine: Machine) -> Result<PathBuf, String> {
    prerequisites::image()?;
    let work = process::target_directory(root)?.join("image");
    let _ = fs::remove_dir_all(&work);
    let layout = work.join("layout");
    let base = work.join("debian.tar");
    let mut bootstrap = Command::new("mmdebstrap");
    bootstrap.args(["--quiet", "--variant=minbase", &format!("--include={PROGRAMS}"), DEBIAN]);
    packages::write(&layout.join("oci-layout"), "{\"imageLayoutVersion\":\"1.0.0\"}\n")?;
    run(bootstrap.arg(&base).env("SOURCE_DATE_EPOCH", moment.to_string()))?;

    let package = format!("ubiverbs_{version}-1_{}.deb", machine.debian());
    let ours = work.join("ubiverbs.tar");
    let unpack = "dpkg-deb --fsys-tarfile \"$1\" > \"$2\"";
    run(Command::new("sh").args(["-c", unpack, "sh"]).arg(place.join(package)).arg(&ours))?;

    let mut image = Image { layout: &layout, layers: Vec::new(), contents: Vec::new() };
    for layer in [&base, &ours] {
        image.add_layer(layer)?;
    }
    image.finish(version, moment, machine)?;
    let archive = place.join(format!("ubiverbs-{version}-{}.oci.tar", machine.name()));
    packages::tar(&archive, &layout, ".", moment, &[])?;
    let _ = fs::remove_dir_all(&work);
    Ok(archive)
}

/// An image that comes to be.
struct Image<'a> {
    /// The directory with all its parts.
    layout: &'a Path,
    /// What the manifest says of each layer.
    layers: Vec<Value>,
    /// What the configuration says of each: the checksum of what is compressed in it.
    contents: Vec<String>,
}

impl Image<'_> {
    fn add_layer(&mut self, tar: &Path) -> Result<(), String> {
        self.contents.push(format!("sha256:{}", digest(tar)?));
        run(Command::new("gzip").args(["-6n", "--force"]).arg(tar))?;
        let compressed = tar.with_extension("tar.gz");
        let layer = self.keep(&compressed, LAYER)?;
        self.layers.push(layer);
        Ok(())
    }

    /// Moves a file to where its checksum says; answers what refers to it.
    fn keep(&self, file: &Path, media_type: &str) -> Result<Value, String> {
        let (sum, blobs) = (digest(file)?, self.layout.join("blobs/sha256"));
        let size = fs::metadata(file).map_err(|e| format!("{}: {e}", name_of(file)))?.len();
        let moved = fs::create_dir_all(&blobs).and_then(|()| fs::rename(file, blobs.join(&sum)));
        moved.map_err(|e| format!("cannot move {}: {e}", file.display()))?;
        Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{sum}"), "size": size }))
    }

    fn keep_json(&self, name: &str, value: &Value, media_type: &str) -> Result<Value, String> {
        let path = self.layout.join(name);
        packages::write(&path, &value.to_string())?;
        self.keep(&path, media_type)
    }

    /// Writes what says how the layers make an image.
    fn finish(&self, version: &str, moment: u64, machine: Machine) -> Result<(), String> {
        let created = super::sbom::time(moment)?;
        let configuration = json!({
            "created": created,
            "architecture": machine.debian(),
            "os": "linux",
            "config": {
                "Entrypoint": ["ubiverbs", "run", "--"],
                "Cmd": ["ibv_devinfo"],
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "Labels": {
                    "org.opencontainers.image.title": "ubiverbs",
                    "org.opencontainers.image.version": version,
                    "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
                },
            },
            "rootfs": { "type": "layers", "diff_ids": self.contents },
            "history": [
                { "created": created, "created_by": format!("mmdebstrap --include={PROGRAMS} {DEBIAN}") },
                { "created": created, "created_by": "cargo xtask release" },
            ],
        });
        let configuration = self.keep_json("config.json", &configuration, CONFIG)?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": configuration,
            "layers": self.layers,
        });
        let mut manifest = self.keep_json("manifest.json", &manifest, MANIFEST)?;
        manifest["platform"] = json!({ "architecture": machine.debian(), "os": "linux" });
        // Engines differ in which of the two they take the name from.
        let name = format!("docker.io/library/ubiverbs:{version}");
        manifest["annotations"] =
            json!({ "org.opencontainers.image.ref.name": name, "io.containerd.image.name": name });
        let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
        packages::write(&self.layout.join("index.json"), &index.to_string())
    }
}
