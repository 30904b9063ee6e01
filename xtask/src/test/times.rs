//! How long things take, from xtask/times.json: each step's budget on two processors, which CI holds steps to; which
//! executables are slow, so that they start first; and which measure something, so that nothing runs beside them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

/// On CI a step that takes so many times its budget fails.
const BUDGET_FACTOR: f64 = 2.0;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    /// Seconds of each step from nothing.
    steps: BTreeMap<String, f64>,
    /// Seconds of test executables that take more than a few.
    slow_executables: BTreeMap<String, u64>,
    /// Test executables that compare times, and so run alone.
    measuring_executables: Vec<String>,
}

impl Times {
    pub fn read() -> Result<Times, String> {
        serde_json::from_str(include_str!("../../times.json")).map_err(|e| format!("xtask/times.json: {e}"))
    }

    /// What is wrong with the time of a step.
    pub fn judge(&self, step: &str, took: Duration) -> Option<String> {
        let budget = self.steps.get(step)?;
        let limit = budget * BUDGET_FACTOR;
        (took.as_secs_f64() > limit).then(|| {
            format!(
                "{step} took {:.0} s; xtask/times.json allows {budget:.0} s, and twice that on CI. Make it faster, or \
                 raise its budget with a reason",
                took.as_secs_f64()
            )
        })
    }

    /// Whether a step has a budget.
    #[cfg(test)]
    pub fn has_step(&self, step: &str) -> bool {
        self.steps.contains_key(step)
    }

    /// Seconds of an executable; 0 for those that are quick.
    pub fn executable(&self, name: &str) -> u64 {
        self.slow_executables.get(name).copied().unwrap_or_default()
    }

    pub fn measures(&self, name: &str) -> bool {
        self.measuring_executables.iter().any(|other| other == name)
    }
}

#[cfg(test)]
mod tests {
    use super::Times;
    use std::time::Duration;

    #[test]
    fn a_step_may_take_twice_its_budget() {
        let times = r#"{"steps": {"docs": 10}, "slow_executables": {}, "measuring_executables": []}"#;
        let times: Times = serde_json::from_str(times).unwrap();
        assert_eq!(times.judge("docs", Duration::from_secs(20)), None);
        assert!(times.judge("docs", Duration::from_secs(21)).unwrap().contains("allows 10 s"));
    }
}
