//! The files of a run, read one after the other.

use crate::exit::Failure;
use recording::{Entry, FileHeader, Reader};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// How the files of recordings end.
const FILE_EXTENSION: &str = "uvrec";

/// So many files are shown together.
const MAX_FILES: usize = 4096;

/// A recording that is read.
pub struct Source {
    pub path: PathBuf,
    reader: Reader<BufReader<File>>,
    /// The least that the host's monotonic clock was ahead of the recording's, and the wall clock.
    ahead: Option<(i128, i128)>,
    noted_block: Option<u64>,
}

impl Source {
    /// Opens a recording.
    pub fn open(path: &Path) -> Result<Source, Failure> {
        let file = File::open(path).map_err(|source| Failure::Read { path: path.to_owned(), source })?;
        let told = |source| Failure::Recording { path: path.to_owned(), source };
        let reader = Reader::new(BufReader::new(file)).map_err(told)?;
        Ok(Source { path: path.to_owned(), reader, ahead: None, noted_block: None })
    }

    pub fn header(&self) -> &FileHeader {
        self.reader.header()
    }

    /// Whether a simulation made it.
    pub fn is_simulated(&self) -> bool {
        self.header().fact(FileHeader::WORLD) == FileHeader::SIMULATED_WORLD
    }

    /// The next entry. What the system cannot read ends the recording.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, Failure> {
        let told = |source| Failure::Recording { path: self.path.clone(), source };
        let entry = self.reader.next_entry().map_err(told)?;
        if let Some(block) = self.reader.current_block()
            && self.noted_block != Some(block.sequence)
        {
            self.noted_block = Some(block.sequence);
            let ahead = |clock: u64| i128::from(clock) - i128::from(block.at);
            let (monotonic, wall) = (ahead(block.monotonic), ahead(block.wall));
            // A block's clocks are read after the time of its first event: the least difference is the nearest.
            if self.ahead.is_none_or(|(least, _)| monotonic < least) {
                self.ahead = Some((monotonic, wall));
            }
        }
        Ok(entry)
    }

    /// How far they are ahead by the best block of the whole file.
    pub fn nearest_ahead(&self) -> Option<(i128, i128)> {
        let block = self.reader.nearest_block()?;
        let ahead = |clock: u64| i128::from(clock) - i128::from(block.at);
        Some((ahead(block.monotonic), ahead(block.wall)))
    }

    /// The number of the block that is being read.
    pub fn block(&self) -> Option<u64> {
        self.noted_block
    }

    /// How far the host's monotonic clock, and the wall clock, are ahead of that of the recording.
    pub fn ahead(&self) -> Option<(i128, i128)> {
        self.ahead
    }

    /// What readers should know: a sentence each.
    pub fn notes(&self) -> Vec<String> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let many = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let (old, missing) = (self.reader.overwritten_blocks(), self.reader.missing_blocks());
        let (damaged, skipped) = (self.reader.damaged_blocks(), self.reader.skipped_records());
        [
            (old, format!("the ring was written over: {} before the first are gone", many(old, "block"))),
            (missing, format!("{} between others are missing", many(missing, "block"))),
            (damaged, format!("{} make no sense, or are cut off", many(damaged, "block"))),
            (skipped, format!("{} and what followed in their blocks are not known here", many(skipped, "record"))),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(_, text)| format!("{name}: {text}"))
        .collect()
    }
}

/// The files that these paths mean: a directory means all recordings in it, in the order of their names.
pub fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        let failed = |source| Failure::Read { path: path.clone(), source };
        if !path.metadata().map_err(failed)?.is_dir() {
            files.push(path.clone());
            continue;
        }
        let before = files.len();
        for entry in path.read_dir().map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == FILE_EXTENSION) && files.len() < MAX_FILES {
                files.push(path);
            }
        }
        files[before..].sort();
        if files.len() == before {
            return Err(Failure::NoRecording { path: path.clone() });
        }
    }
    Ok(files)
}
