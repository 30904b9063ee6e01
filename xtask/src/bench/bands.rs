//! The check against bands: a file says between which bounds each ratio was found to be, with room for machines that differ. Times are not compared.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::Ratios;

/// Between which bounds a ratio should be. Most have one: too good is no failure.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Band {
    at_most: Option<f64>,
    at_least: Option<f64>,
}

/// Bands by the name of the ratio.
pub type Bands = BTreeMap<String, Band>;

impl Band {
    /// The band that is so many times as wide.
    fn widened(self, factor: f64) -> Band {
        Band { at_most: self.at_most.map(|bound| bound * factor), at_least: self.at_least.map(|bound| bound / factor) }
    }

    fn has(self, ratio: f64) -> bool {
        self.at_most.is_none_or(|bound| ratio <= bound) && self.at_least.is_none_or(|bound| ratio >= bound)
    }
}

/// The bands with room for one run on a busy machine.
pub fn widened(bands: Bands, factor: f64) -> Bands {
    bands.into_iter().map(|(name, band)| (name, band.widened(factor))).collect()
}

/// Leaves out the bands that have their ratios.
pub fn drop_kept(bands: &mut Bands, ratios: &Ratios) {
    bands.retain(|name, band| !ratios.get(name).is_some_and(|ratio| band.has(ratio.ratio)));
}

/// Reads a file of bands.
pub fn read(path: &Path) -> Result<Bands, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Whether all ratios are within their bands. What was not measured is said, and is no failure: not every machine has every program.
pub fn check(bands: &Bands, ratios: &Ratios) -> Result<String, String> {
    let mut wrong = String::new();
    let mut unmeasured = Vec::new();
    for (name, band) in bands {
        let Some(ratio) = ratios.get(name).map(|ratio| ratio.ratio) else {
            unmeasured.push(name.as_str());
            continue;
        };
        // Writing to a string cannot fail.
        if let Some(bound) = band.at_most.filter(|bound| ratio > *bound) {
            let _ = write!(wrong, "\n  {name} is {ratio:.3}, and should be at most {bound}");
        }
        if let Some(bound) = band.at_least.filter(|bound| ratio < *bound) {
            let _ = write!(wrong, "\n  {name} is {ratio:.3}, and should be at least {bound}");
        }
    }
    if unmeasured.len() == bands.len() {
        return Err("none of the ratios was measured".into());
    }
    if !wrong.is_empty() {
        return Err(format!("slower than before:{wrong}"));
    }
    let mut note = format!("{} ratios are within their bands", bands.len() - unmeasured.len());
    if !unmeasured.is_empty() {
        let _ = write!(note, "; not measured: {}", unmeasured.join(", "));
    }
    Ok(note)
}

#[cfg(test)]
mod tests {
    use super::super::Ratio;
    use super::*;

    fn ratios(of: &[(&str, f64)]) -> Ratios {
        let one = |(name, ratio): &(&str, f64)| {
            ((*name).to_string(), Ratio { what: String::new(), ratio: *ratio, spread: None })
        };
        of.iter().map(one).collect()
    }

    #[test]
    fn what_is_outside_its_band_is_named() {
        let bands: Bands =
            serde_json::from_str(r#"{ "latency": { "at_most": 0.5 }, "bandwidth": { "at_least": 2.0 } }"#).unwrap();
        assert_eq!(
            check(&bands, &ratios(&[("latency", 0.5), ("bandwidth", 2.0)])).unwrap(),
            "2 ratios are within their bands"
        );
        let wrong = check(&bands, &ratios(&[("latency", 0.6), ("bandwidth", 1.9)])).unwrap_err();
        assert!(wrong.contains("latency is 0.600") && wrong.contains("bandwidth is 1.900"), "{wrong}");
        let note = check(&bands, &ratios(&[("latency", 0.1)])).unwrap();
        assert!(note.ends_with("not measured: bandwidth"), "{note}");
        assert!(check(&bands, &ratios(&[("other", 1.0)])).is_err());
    }

    #[test]
    fn a_band_that_was_kept_once_is_kept_and_wide_ones_have_room() {
        let text =
            r#"{ "latency": { "at_most": 0.5 }, "bandwidth": { "at_least": 3.0 }, "rate": { "at_least": 1.0 } }"#;
        let mut bands = widened(serde_json::from_str(text).unwrap(), 1.5);
        drop_kept(&mut bands, &ratios(&[("latency", 0.74), ("bandwidth", 1.9)]));
        assert_eq!(bands.keys().collect::<Vec<_>>(), ["bandwidth", "rate"]);
        drop_kept(&mut bands, &ratios(&[("latency", 9.0), ("bandwidth", 2.1), ("rate", 0.6)]));
        assert_eq!(bands.keys().collect::<Vec<_>>(), ["rate"]);
    }

    #[test]
    fn the_file_that_is_kept_can_be_read() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/ratios.json");
        let bands = read(&path).unwrap();
        assert!(bands.values().all(|band| band.at_most.is_some() || band.at_least.is_some()), "{bands:?}");
        assert!(serde_json::from_str::<Bands>(r#"{ "a": { "most": 1 } }"#).is_err());
    }
}
