//! What must be so before a release, and what a person types to publish one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{SUMS, name_of};
use crate::process;

/// What is missing, a sentence each.
pub fn not_ready(root: &Path, version: &str) -> Result<Vec<String>, String> {
    let path = root.join("CHANGELOG.md");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut missing = Vec::new();
    missing.extend(unnamed_changes(&text, version));
    let git = |arguments: &[&str]| process::output(Command::new("git").current_dir(root).args(arguments));
    let changed = git(&["status", "--porcelain"])?;
    if let Some(first) = changed.lines().next() {
        missing.push(format!(
            "the working tree has changes ({} files, such as {})",
            changed.lines().count(),
            first.trim()
        ));
    }
    if !git(&["tag", "--list", &tag(version)])?.trim().is_empty() {
        missing.push(format!("there is a tag {} already: raise the version in Cargo.toml", tag(version)));
    }
    Ok(missing)
}

fn tag(version: &str) -> String {
    format!("v{version}")
}

/// What is wrong with the headings of the changelog.
fn unnamed_changes(changelog: &str, version: &str) -> Option<String> {
    let mut headings = changelog.split("\n## ").skip(1);
    let newest = headings.find(|part| !part.starts_with("[Unreleased]") || part.lines().count() > 1 && !is_empty(part));
    let Some(heading) = newest.and_then(|part| part.lines().next()) else {
        return Some("CHANGELOG.md has no version".into());
    };
    if heading.starts_with("[Unreleased]") {
        return Some(format!(
            "CHANGELOG.md has unreleased changes above {version}: give their heading a version and a date, and raise \
             the version in Cargo.toml to it"
        ));
    }
    let named = heading.strip_prefix(&format!("[{version}] - "));
    let is_date = |date: &str| date.len() == 10 && date.split('-').all(|part| part.parse::<u16>().is_ok());
    match named.is_some_and(is_date) {
        true => None,
        false => Some(format!("CHANGELOG.md begins with `{heading}`, not with `[{version}] - YYYY-MM-DD`")),
    }
}

/// Whether a part has nothing but its heading.
fn is_empty(part: &str) -> bool {
    part.lines().skip(1).all(|line| line.trim().is_empty())
}

/// What a person types, in this order: what cannot be taken back comes last.
pub fn instructions(version: &str, files: &[PathBuf]) -> String {
    let names = |ending: &str| {
        let fit = files.iter().map(|file| name_of(file)).filter(|name| name.ends_with(ending));
        fit.collect::<Vec<_>>().join(" ")
    };
    let (tag, wheels, image) = (tag(version), names(".whl"), names(".oci.tar"));
    let attached = [".tar.gz", ".deb", ".whl", ".oci.tar", ".json"].map(names).join(" ");
    let image = match image.is_empty() {
        true => String::new(),
        false => format!("skopeo copy oci-archive:{image} docker://REGISTRY/ubiverbs:{version}\n"),
    };
    format!(
        "\nNothing was uploaded. To publish, look at the files, then type, in {place}:\n\n\
         gpg --detach-sign --armor {SUMS}\n\
         git -C ../.. tag --sign {tag} --message 'ubiverbs {version}' && git -C ../.. push origin {tag}\n\
         gh release create {tag} --verify-tag --notes-file NOTES {attached} {SUMS} {SUMS}.asc\n\
         {image}\
         twine upload {wheels}\n\
         cargo publish --manifest-path ../../Cargo.toml --workspace --locked\n",
        place = super::PLACE
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_heading_is_the_version_with_a_date() {
        let fine = "# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2026-12-01\n\n### Added\n- a\n";
        assert_eq!(unnamed_changes(fine, "0.3.0"), None);
        assert_eq!(unnamed_changes(&fine.replace("\n## [Unreleased]\n", ""), "0.3.0"), None);
        assert!(unnamed_changes(fine, "0.4.0").unwrap().contains("begins with"));
        assert!(unnamed_changes(&fine.replace(" - 2026-12-01", ""), "0.3.0").unwrap().contains("YYYY"));
        assert!(unnamed_changes(&fine.replace("2026-12-01", "2026-12-xx"), "0.3.0").is_some());
    }

    #[test]
    fn unreleased_changes_want_a_version() {
        let text = "# Changelog\n\n## [Unreleased]\n\n### Added\n- a\n\n## [0.2.0] - 2026-11-17\n";
        assert!(unnamed_changes(text, "0.2.0").unwrap().contains("unreleased changes above 0.2.0"));
        assert_eq!(unnamed_changes("# Changelog\n", "0.2.0").unwrap(), "CHANGELOG.md has no version");
    }

    #[test]
    fn everything_is_in_the_instructions() {
        let files = ["a.tar.gz", "b.deb", "c.whl", "d.oci.tar", "e.crate", "f.cdx.json"].map(PathBuf::from);
        let text = instructions("1.2.3", &files);
        for word in
            ["v1.2.3", "a.tar.gz b.deb c.whl d.oci.tar f.cdx.json", "twine upload c.whl\n", "oci-archive:d.oci.tar"]
        {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(!instructions("1.2.3", &files[..3]).contains("skopeo"));
    }
}
