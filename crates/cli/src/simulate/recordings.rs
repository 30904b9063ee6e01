//! Recordings of simulated hosts, one file each, as `ubiverbs view` reads them. Their clock is the simulation's.

use crate::exit::Failure;
use recording::block::BLOCK_BYTES;
use recording::{BlockStart, BlockWriter, FileHeader};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use trace::{Call, Event, Kind};

/// So many hosts are recorded.
pub const MAX_RECORDED_HOSTS: u32 = 64;

/// How long the recordings of a run are together: about three million packets.
const MAX_RECORDED_BYTES: u64 = 256 << 20;

/// The recordings of a run.
pub struct Recordings {
    directory: PathBuf,
    hosts: Vec<HostRecording>,
    /// Blocks of all hosts.
    blocks: u64,
    /// Why no more is recorded.
    ended: Option<Failure>,
}

/// The recording of a host.
struct HostRecording {
    file: File,
    path: PathBuf,
    writer: BlockWriter,
    /// The block that is being written.
    block: Vec<u8>,
    /// Blocks that were begun.
    begun: u64,
}

impl Recordings {
    /// Makes the directory, if it is not there, and in it the files of so many hosts.
    pub fn create(directory: &Path, hosts: u32) -> Result<Recordings, Failure> {
        if hosts > MAX_RECORDED_HOSTS {
            return Err(Failure::Script(format!(
                "--record is for small runs: {MAX_RECORDED_HOSTS} hosts at most, and there are {hosts}; \
                 --pcap captures a host of a large one"
            )));
        }
        let failed = |source| Failure::Open { path: directory.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let hosts = (0..hosts).map(|host| HostRecording::create(directory, host)).collect::<Result<_, _>>()?;
        Ok(Recordings { directory: directory.to_owned(), hosts, blocks: 0, ended: None })
    }

    /// Records what happened at a host.
    pub fn record(&mut self, host: u32, event: &Event) {
        let Some(recording) = self.hosts.get_mut(host as usize).filter(|_| self.ended.is_none()) else { return };
        if recording.begun > 0 && recording.writer.event(&mut recording.block, event) {
            return;
        }
        if self.blocks >= MAX_RECORDED_BYTES / BLOCK_BYTES as u64 {
            let (path, bytes) = (self.directory.clone(), MAX_RECORDED_BYTES);
            self.ended = Some(Failure::RecordingLimit { path, mebibytes: bytes >> 20, nanos: event.at });
            return;
        }
        self.blocks += 1;
        if let Err(failure) = recording.begin_block(event.at) {
            self.ended = Some(failure);
            return;
        }
        recording.writer.event(&mut recording.block, event);
    }

    /// The simulation has ended.
    pub fn finish(&mut self, now: u64) -> Result<(), Failure> {
        let exit = Event { at: now, qpn: None, kind: Kind::Called { thread: 0, call: Call::Exit {} } };
        for host in 0..self.hosts.len() as u32 {
            self.record(host, &exit);
        }
        for recording in &self.hosts {
            recording.flush()?;
        }
        self.ended.take().map_or(Ok(()), Err)
    }
}

impl HostRecording {
    fn create(directory: &Path, host: u32) -> Result<HostRecording, Failure> {
        let path = directory.join(format!("host{host:02}.uvrec"));
        let mut options = OpenOptions::new();
        let file =
            options.write(true).create_new(true).mode(0o600).open(&path).map_err(|source| match source.kind() {
                ErrorKind::AlreadyExists => Failure::RecordedBefore { path: path.clone() },
                _ => Failure::Open { path: path.clone(), source },
            })?;
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let facts = vec![
            fact(FileHeader::PROGRAM, format!("host{host}")),
            fact(FileHeader::WORLD, FileHeader::SIMULATED_WORLD.to_owned()),
            fact(FileHeader::WRITER, concat!("ubiverbs ", env!("CARGO_PKG_VERSION")).to_owned()),
        ];
        let (writer, block) = (BlockWriter::default(), vec![0; BLOCK_BYTES]);
        let recording = HostRecording { file, path, writer, block, begun: 0 };
        let header = FileHeader { ring_blocks: 0, facts }.to_bytes();
        recording.write(&header, 0)?;
        Ok(recording)
    }

    /// Writes the block that is full, if there is one, and begins the next.
    fn begin_block(&mut self, at: u64) -> Result<(), Failure> {
        self.flush()?;
        self.block.fill(0);
        self.writer.begin(&mut self.block, &BlockStart { sequence: self.begun, at, monotonic: at, wall: at });
        self.begun += 1;
        Ok(())
    }

    fn flush(&self) -> Result<(), Failure> {
        match self.begun {
            0 => Ok(()),
            begun => self.write(&self.block[..self.writer.length()], begun * BLOCK_BYTES as u64),
        }
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<(), Failure> {
        let failed = |source: io::Error| Failure::Open { path: self.path.clone(), source };
        self.file.write_all_at(bytes, at).map_err(failed)
    }
}
