//! SARIF 2.1.0 (OASIS): the document around rules and results.

use serde_json::{Value, json};

const SCHEMA_ADDRESS: &str =
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";

/// A document with one run.
pub fn document(rules: Vec<Value>, invocation: Value, results: Vec<Value>) -> Value {
    json!({
        "$schema": SCHEMA_ADDRESS,
        "version": "2.1.0",
        "runs": [{
            "tool": {
                "driver": {
                    "name": "ubiverbs",
                    "version": env!("CARGO_PKG_VERSION"),
                    "semanticVersion": env!("CARGO_PKG_VERSION"),
                    "rules": rules,
                }
            },
            "invocations": [invocation],
            "results": results,
        }],
    })
}

/// The command of a run.
pub fn invocation(line: &[String], succeeded: bool) -> Value {
    json!({
        "commandLine": line.join(" "),
        "arguments": line.get(1..).unwrap_or_default(),
        "executionSuccessful": succeeded,
    })
}

/// A name as a part of a URI.
pub fn uri(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    name.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parts_of_uris() {
        assert_eq!(uri("my program%"), "my%20program%25");
    }
}
