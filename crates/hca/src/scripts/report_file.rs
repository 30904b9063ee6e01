//! The file in which all processes of a run report what failure scripts struck. Every line is appended in one write as it
//! happens, so those of a process that is killed are there, and lines of several processes do not mix.

use crate::record::appended_file::AppendedFile;
use ::host::stamp::Stamp;
use failures::Strike;
use failures::report::Report;
use std::path::Path;

/// The file, and the name of this process's executable.
#[derive(Debug)]
pub(crate) struct ReportFile {
    file: AppendedFile,
    program: String,
}

impl ReportFile {
    /// Opens it. What goes wrong is told once.
    pub fn open(path: &Path, program: &str) -> Option<ReportFile> {
        Some(ReportFile { file: AppendedFile::open(path, "report strikes")?, program: program.to_owned() })
    }

    /// Appends a strike, so many nanoseconds after the first device was opened.
    pub fn tell(&mut self, script: &str, strike: &Strike, at: u64, struck: Result<&str, &str>) {
        let Stamp { wall, process, .. } = Stamp::now();
        let wall = wall.as_nanos() as u64;
        let report = Report { script, strike, at, wall, process, program: &self.program, struck };
        self.file.write(report.json());
    }
}
