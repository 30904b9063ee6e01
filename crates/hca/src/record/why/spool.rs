//! The file in which `ubiverbs run` collects the findings of all processes of a run, as they happen.

use crate::record::appended_file::AppendedFile;
use std::path::Path;

/// The file, open to append to.
#[derive(Debug)]
pub(super) struct Spool {
    file: AppendedFile,
}

impl Spool {
    /// Opens it, and says in it that this process is checked. What goes wrong is told once.
    pub fn open(path: &Path) -> Option<Spool> {
        let mut spool = Spool { file: AppendedFile::open(path, "collect findings")? };
        let name = std::env::current_exe().unwrap_or_default();
        let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
        spool.write(format!("{{\"process\":{},\"program\":{}}}", std::process::id(), checks::quoted(&name)));
        Some(spool)
    }

    /// Appends a line.
    pub fn write(&mut self, line: String) {
        self.file.write(line);
    }
}
