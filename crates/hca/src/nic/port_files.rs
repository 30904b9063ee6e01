//! The files of a port that is broken on purpose. `ubiverbs run` shows its program files of ports under `/sys`, as things
//! are when it starts. While a failure script breaks a port, this process keeps other ones of that port, in a directory of
//! its own beside them; the library that `run` preloads (`crates/paths`) leads there.

use super::Nic;
use crate::environment;
use crate::objects::device::{Device, Imposed, Port};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Below the directory of the files: what processes have broken, each under its number.
const BROKEN_DIRECTORY: &str = "broken";

/// The files of a port that can change, in the words of the kernel.
pub fn port_files(port: &Port) -> Vec<(String, String)> {
    let (state, physical) = if port.active { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
    let pkey = port.imposed().pkey.unwrap_or(wire::Pkey::DEFAULT.value());
    let mut files = vec![
        ("state".into(), state.into()),
        ("phys_state".into(), physical.into()),
        ("rate".into(), port.rate.to_string()),
        ("lid".into(), format!("{:#x}", port.imposed().lid)),
        ("pkeys/0".into(), format!("{pkey:#06x}")),
    ];
    for (index, gid) in port.gids.iter().enumerate() {
        let octets = gid.unwrap_or_default().octets();
        let words: Vec<String> = octets.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
        files.push((format!("gids/{index}"), words.join(":")));
    }
    files
}

impl Nic {
    /// Shows what a script has made of a port, if there are files: those that say something else than at the start.
    pub(crate) fn show_port(&self, device: &Device) {
        let Some(files) = environment::variable(environment::FILES_VARIABLE) else { return };
        let own = PathBuf::from(files).join(BROKEN_DIRECTORY).join(std::process::id().to_string());
        let port = device.port().clone();
        let place = own.join(device.name()).join(format!("ports/{}", device.port_number()));
        if let Err(error) = show(&place, &port) {
            environment::say(format_args!("the files of {} do not follow the script: {error}", device.port_name()));
        }
    }
}

/// Each file is whole whenever it is read. A port that flaps has few to write.
fn show(place: &Path, port: &Port) -> io::Result<()> {
    let imposed = port.imposed();
    if *imposed == Imposed::default() && !place.exists() {
        return Ok(());
    }
    let is_other = |name: &str| match name {
        "state" | "phys_state" => imposed.down,
        "rate" => imposed.rate.is_some(),
        "lid" => imposed.lid != 0,
        "pkeys/0" => imposed.pkey.is_some(),
        _ => !imposed.removed.is_empty() || !imposed.added.is_empty(),
    };
    for directory in ["pkeys", "gids"] {
        fs::create_dir_all(place.join(directory))?;
    }
    let fresh = place.join(".fresh");
    for (name, text) in port_files(port) {
        let path = place.join(&name);
        if is_other(&name) {
            fs::write(&fresh, format!("{text}\n"))?;
            fs::rename(&fresh, path)?;
        } else if let Err(error) = fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
    }
    Ok(())
}
