//! Where speech goes: a file that appears whole or not at all, or stdout while it is being made.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::audio::{UNKNOWN_LENGTH, WAV_HEADER_BYTES, append_i16, wav_header};
use crate::error::{Error, Result};

/// How samples are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AudioFormat {
    /// RIFF WAV, mono, 16 bits.
    Wav,
    /// Mono 16-bit little-endian samples, no header.
    Pcm,
}

impl AudioFormat {
    /// The format a file name asks for: `.wav`, or raw PCM for `.pcm`, `.raw` and stdout (`-`).
    ///
    /// # Errors
    /// [`Error::Input`] for any other extension.
    pub fn of(path: &Path) -> Result<AudioFormat> {
        let extension = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
        match extension.as_deref() {
            Some("wav") => Ok(AudioFormat::Wav),
            Some("pcm" | "raw") => Ok(AudioFormat::Pcm),
            _ if is_stdout(path) => Ok(AudioFormat::Pcm),
            _ => Err(Error::input(
                "--out",
                format!("{}: expected a name in .wav, .pcm or .raw, or `-`; or say --format", path.display()),
            )),
        }
    }
}

/// Whether a path means stdout.
pub fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Whether a path is a pipe, device or socket: written as it stands, never replaced.
fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir())
}

/// A place for speech.
///
/// A file is written beside its final name and renamed when it is whole; dropped before [`AudioOutput::finish`], it
/// leaves nothing behind. A named pipe or device is written directly. Stdout is flushed after every frame.
pub struct AudioOutput {
    format: AudioFormat,
    sample_rate_hz: u32,
    target: Target,
    data_bytes: u64,
    buffer: Vec<u8>,
}

enum Target {
    Stream { out: Box<dyn Write>, path: PathBuf },
    File { out: BufWriter<File>, temporary: PathBuf, path: PathBuf, finished: bool },
}

impl AudioOutput {
    /// Opens the place and writes the header.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be written.
    pub fn open(path: &Path, format: AudioFormat, sample_rate_hz: u32) -> Result<AudioOutput> {
        let target = if is_stdout(path) {
            Target::Stream { out: Box::new(io::stdout()), path: "stdout".into() }
        } else if is_special(path) {
            let pipe = File::options().write(true).open(path).map_err(Error::io("open", path))?;
            Target::Stream { out: Box::new(pipe), path: path.to_owned() }
        } else {
            let temporary = temporary_name(path)?;
            let file = File::create(&temporary).map_err(Error::io("create", path))?;
            Target::File { out: BufWriter::new(file), temporary, path: path.to_owned(), finished: false }
        };
        let mut output = AudioOutput { format, sample_rate_hz, target, data_bytes: 0, buffer: Vec::new() };
        if format == AudioFormat::Wav {
            output.buffer.extend_from_slice(&wav_header(sample_rate_hz, UNKNOWN_LENGTH));
            output.write_buffer()?;
        }
        Ok(output)
    }

    /// Appends samples.
    ///
    /// # Errors
    /// [`Error::Io`], a closed pipe included.
    pub fn write(&mut self, pcm: &[f32]) -> Result<()> {
        append_i16(pcm, &mut self.buffer);
        self.data_bytes += self.buffer.len() as u64;
        self.write_buffer()
    }

    /// Completes the header and gives the file its name.
    ///
    /// # Errors
    /// [`Error::Io`]; nothing is left under the final name then.
    pub fn finish(mut self) -> Result<()> {
        let header = wav_header(self.sample_rate_hz, u32::try_from(self.data_bytes).unwrap_or(UNKNOWN_LENGTH));
        let Target::File { out, temporary, path, finished } = &mut self.target else { return Ok(()) };
        if self.format == AudioFormat::Wav {
            out.seek(SeekFrom::Start(0)).map_err(Error::io("write", temporary))?;
            out.write_all(&header[..WAV_HEADER_BYTES]).map_err(Error::io("write", temporary))?;
        }
        out.flush().map_err(Error::io("write", temporary))?;
        std::fs::rename(&temporary, &path).map_err(Error::io("rename the finished file to", path))?;
        *finished = true;
        Ok(())
    }

    fn write_buffer(&mut self) -> Result<()> {
        let written = match &mut self.target {
            Target::Stream { out, path } => {
                out.write_all(&self.buffer).and_then(|()| out.flush()).map_err(Error::io("write", path))
            }
            Target::File { out, temporary, .. } => out.write_all(&self.buffer).map_err(Error::io("write", temporary)),
        };
        self.buffer.clear();
        written
    }
}

impl Drop for AudioOutput {
    fn drop(&mut self) {
        if let Target::File { temporary, finished: false, .. } = &self.target {
            let _ = std::fs::remove_file(temporary);
        }
    }
}

/// Refuses places that are the same file, or that would replace a file that is being read.
///
/// # Errors
/// [`Error::Input`] naming both.
pub fn check_places(outputs: &[&Path], inputs: &[&Path]) -> Result<()> {
    let place = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    for (i, output) in outputs.iter().enumerate().filter(|(_, path)| !is_stdout(path) && !is_special(path)) {
        let others = outputs[..i].iter().chain(inputs);
        // In a model's folder new files are welcome and earlier speech may be replaced; the model's own files may not.
        let speech = AudioFormat::of(output).is_ok();
        let inside = |folder: &Path| output.exists() && !speech && place(output).parent() == Some(&place(folder));
        let taken = |other: &&&Path| place(output) == place(other) || inside(other);
        if let Some(other) = others.into_iter().find(taken) {
            let message = format!("{} would overwrite {} or a file in it", output.display(), other.display());
            return Err(Error::input("--out", message));
        }
    }
    Ok(())
}

/// A name beside `path` that nobody else uses and a reader would recognise.
fn temporary_name(path: &Path) -> Result<PathBuf> {
    let name = path
        .file_name()
        .filter(|_| !path.is_dir())
        .ok_or_else(|| Error::input("output", format!("{}: expected a file name, found a folder", path.display())))?;
    Ok(path.with_file_name(format!(".{}.{}.part", name.to_string_lossy(), std::process::id())))
}

/// Refuses, before any work, a place where [`write_whole`] could not write.
///
/// # Errors
/// [`Error::Input`] for a folder; [`Error::Io`] for a folder that is missing or takes no files.
pub fn check_place(path: &Path) -> Result<()> {
    if is_special(path) {
        return Ok(());
    }
    let temporary = temporary_name(path)?;
    std::fs::write(&temporary, []).map_err(Error::io("create", path))?;
    std::fs::remove_file(&temporary).map_err(Error::io("remove", &temporary))
}

/// Writes a small file so that its name holds all of it or what it held before.
///
/// # Errors
/// [`Error::Io`].
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    if is_special(path) {
        let mut pipe = File::options().write(true).open(path).map_err(Error::io("open", path))?;
        return pipe.write_all(bytes).map_err(Error::io("write", path));
    }
    let temporary = temporary_name(path)?;
    let written = std::fs::write(&temporary, bytes)
        .map_err(Error::io("write", &temporary))
        .and_then(|()| std::fs::rename(&temporary, path).map_err(Error::io("rename the finished file to", path)));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_file_has_exact_sizes_and_an_unfinished_one_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("speech.wav");
        let mut output = AudioOutput::open(&path, AudioFormat::Wav, 24_000).unwrap();
        output.write(&[0.5; 1920]).unwrap();
        assert!(!path.exists());
        output.finish().unwrap();
        let reader = hound::WavReader::open(&path).unwrap();
        assert_eq!(reader.duration(), 1920);
        std::fs::remove_file(&path).unwrap();

        let mut output = AudioOutput::open(&path, AudioFormat::Wav, 24_000).unwrap();
        output.write(&[0.5; 1920]).unwrap();
        drop(output);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_name_says_the_format() {
        assert_eq!(AudioFormat::of(Path::new("a.WAV")).unwrap(), AudioFormat::Wav);
        assert_eq!(AudioFormat::of(Path::new("a.raw")).unwrap(), AudioFormat::Pcm);
        assert_eq!(AudioFormat::of(Path::new("-")).unwrap(), AudioFormat::Pcm);
        let error = AudioFormat::of(Path::new("a.mp3")).unwrap_err().to_string();
        assert!(error.starts_with("--out: a.mp3: expected"), "{error}");
    }
}
