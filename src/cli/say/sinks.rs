//! Everything that listens while speech is made.

use serde_json::Value;
#[cfg(feature = "speaker")]
use serde_json::json;

use super::SayArgs;
use crate::cli::model::Model;
use crate::cli::output::{AudioFormat, AudioOutput};
use crate::error::{Error, Result};
use crate::pipeline::{Script, Sound, Spoken};
#[cfg(feature = "speaker")]
use crate::playback::{Speaker, StartRule};

/// What playback reports, where there is any.
pub(super) type Playback = Option<Value>;

/// Everything that listens.
pub(super) struct Sinks {
    file: Option<AudioOutput>,
    #[cfg(feature = "speaker")]
    speaker: Option<Speaker>,
}

impl Sinks {
    #[cfg_attr(not(feature = "speaker"), allow(unused_variables))]
    pub(super) fn open(
        args: &SayArgs,
        format: Option<AudioFormat>,
        model: &Model,
        script: &Script<'_>,
    ) -> Result<Sinks> {
        let rate = model.engine.info().sample_rate_hz;
        let wants_sound = args.out.is_some() || cfg!(feature = "speaker");
        if rate == 0 && wants_sound {
            return Err(Error::input(
                "--model",
                "this export has no codec (--no-codec) and makes tokens only; export again with the codec",
            ));
        }
        let file = match (&args.out, format) {
            (Some(path), Some(format)) => Some(AudioOutput::open(path, format, rate as u32)?),
            _ => None,
        };
        #[cfg(feature = "speaker")]
        let speaker = match args.play {
            true => {
                let clip_seconds = args.max_seconds.unwrap_or(f64::INFINITY).min(longest_seconds(script));
                Some(Speaker::open(rate, StartRule { clip_seconds })?)
            }
            false => None,
        };
        Ok(Sinks {
            file,
            #[cfg(feature = "speaker")]
            speaker,
        })
    }

    pub(super) fn hear(&mut self, sound: &Sound) -> Result<()> {
        if let Some(file) = &mut self.file {
            file.write(sound.pcm)?;
        }
        #[cfg(feature = "speaker")]
        if let Some(speaker) = &mut self.speaker {
            speaker.push(sound.pcm, sound.elapsed)?;
        }
        Ok(())
    }

    #[cfg_attr(not(feature = "speaker"), allow(unused_variables))]
    pub(super) fn finish(self, spoken: &Spoken) -> Result<Playback> {
        if let Some(file) = self.file {
            file.finish()?;
        }
        #[cfg(feature = "speaker")]
        if let Some(speaker) = self.speaker {
            let playback = speaker.finish(spoken.timings.total - spoken.timings.prefill)?;
            return Ok(Some(json!({
                "start_lead_seconds": playback.start_lead_seconds,
                "underruns": playback.underruns,
            })));
        }
        Ok(None)
    }
}

/// Upper estimate of the speech: the front end's own estimate is right within a third on nearly all sentences.
#[cfg(feature = "speaker")]
fn longest_seconds(script: &Script) -> f64 {
    let prepared = crate::speech::prepare(script.text, &script.preparation);
    1.0 + 4.0 / 3.0 * prepared.chunks.iter().map(|chunk| chunk.seconds).sum::<f64>()
}
