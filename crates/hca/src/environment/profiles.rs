//! Profiles of NICs that the environment asks for. What is asked for wrongly is told on standard error and left out; the
//! program runs all the same.

use super::{CHECK_VARIABLE, LOG_VARIABLE, NIC_VARIABLE, WHY_VARIABLE, is_off, say, variable};
use profiles::Profile;
use std::sync::OnceLock;
use transport::weak::DEFAULT_SEED;

/// The profiles of the NICs, in their order; the last one holds for all that follow.
pub(crate) fn profiles() -> &'static [&'static Profile] {
    static PROFILES: OnceLock<Vec<&'static Profile>> = OnceLock::new();
    PROFILES.get_or_init(|| {
        let Some(text) = variable(NIC_VARIABLE).filter(|text| !text.is_empty()) else { return Vec::new() };
        let read = read_profiles(&text.to_string_lossy());
        let read = read.inspect_err(|error| say(format_args!("{NIC_VARIABLE}: {error}"))).unwrap_or_default();
        read.iter().for_each(tell_seed);
        // They last as long as the process, which has them once.
        read.into_iter().map(|profile| &*Box::leak(Box::new(profile))).collect()
    })
}

/// Tells where chance begins in a weak NIC, if the program is watched.
fn tell_seed(profile: &Profile) {
    let is_asked = |name| variable(name).is_some_and(|text| !text.is_empty() && is_off(&text) != Some(true));
    if !profile.order.is_usual() && [LOG_VARIABLE, WHY_VARIABLE, CHECK_VARIABLE].into_iter().any(is_asked) {
        let (name, seed) = (&profile.name, profile.order.seed.unwrap_or(DEFAULT_SEED));
        say(format_args!("NIC {name}: its order is by chance; {name},seed={seed} gives the same chance again"));
    }
}

/// The profile of the NIC of that place.
pub fn profile_of(position: usize) -> Option<&'static Profile> {
    let profiles = profiles();
    profiles.get(position).or(profiles.last()).copied()
}

/// Reads profiles: names of those that come with ubiverbs, and files, with commas between them. `seed=7` after one is where
/// chance begins in it.
#[cfg(feature = "scripts")]
pub fn read_profiles(text: &str) -> Result<Vec<Profile>, String> {
    let mut read: Vec<Profile> = Vec::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        match (word.split_once('='), read.last_mut()) {
            (Some(("seed", number)), Some(profile)) => {
                let seed = number.parse().map_err(|_| format!("seed={number}: expected a number"))?;
                profile.order.seed = Some(seed);
            }
            (Some(("seed", _)), None) => return Err(format!("{word} comes after the profile that it is for")),
            _ => read.push(read_profile(word)?),
        }
    }
    Ok(read)
}

#[cfg(feature = "scripts")]
fn read_profile(path: &str) -> Result<Profile, String> {
    use profiles::library::{NAMES, Shipped};
    if let Some(Shipped { name, text }) = Shipped::find(path) {
        return Profile::parse(name, text).map_err(|error| format!("{name}: {error}"));
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    let text = super::read_bounded(path.as_ref(), profiles::MAX_PROFILE_BYTES);
    let text = text.map_err(|error| {
        let names = NAMES.join(", ");
        format!("{path} is none of {names}, and no profile can be read from it: {error}")
    })?;
    Profile::parse(name.strip_suffix(".toml").unwrap_or(name), text).map_err(|error| format!("{name}: {error}"))
}

#[cfg(not(feature = "scripts"))]
fn read_profiles(_text: &str) -> Result<Vec<Profile>, String> {
    Err("this program was built without the feature `scripts` of the crate ubiverbs".into())
}
