//! The feature `serde`: what programs tell each other, an [`Endpoint`] and a [`RemoteSlice`], is serialized as the text
//! that `Display` writes and `FromStr` reads.

use crate::{Endpoint, RemoteSlice};
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};
use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::str::FromStr;

impl Serialize for Endpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Endpoint, D::Error> {
        deserializer.deserialize_str(Text("an endpoint, as it is printed", PhantomData))
    }
}

impl Serialize for RemoteSlice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RemoteSlice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RemoteSlice, D::Error> {
        deserializer.deserialize_str(Text("a remote slice, as it is printed", PhantomData))
    }
}

/// Reads a text that says what it should be.
struct Text<T>(&'static str, PhantomData<T>);

impl<T: FromStr<Err: Display>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}
