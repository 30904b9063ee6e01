//! A deterministic network with a virtual clock, for testing the transport.
