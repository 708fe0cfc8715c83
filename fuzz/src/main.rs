//! `forebay-fuzz`: runs a target. Built with the feature `libfuzzer` it is a libFuzzer program for
//! the target that `FOREBAY_FUZZ_TARGET` names (`scripts/fuzz` does that); otherwise it has its own
//! small mutator and no coverage.
#![cfg_attr(feature = "libfuzzer", no_main)]

#[cfg(feature = "libfuzzer")]
#[allow(unsafe_code, missing_docs, reason = "what the macro makes: the entry point that libFuzzer calls")]
mod guided {
    use forebay_fuzz::Target;
    use std::sync::OnceLock;

    libfuzzer_sys::fuzz_target!(|input: &[u8]| {
        static TARGET: OnceLock<&'static Target> = OnceLock::new();
        let target = TARGET.get_or_init(|| {
            let name = std::env::var("FOREBAY_FUZZ_TARGET").unwrap_or_default();
            Target::find(&name).unwrap_or_else(|| panic!("FOREBAY_FUZZ_TARGET names no target: {name:?}"))
        });
        (target.run)(input);
    });
}

#[cfg(not(feature = "libfuzzer"))]
fn main() -> std::process::ExitCode {
    plain::main()
}

#[cfg(not(feature = "libfuzzer"))]
mod plain {
    use forebay_fuzz::mutate::{Random, mutated};
    use forebay_fuzz::{Target, targets};
    use std::io::Write as _;
    use std::path::{Path, PathBuf};
    use std::process::ExitCode;
    use std::time::{Duration, Instant};

    const USAGE: &str = "\
usage: forebay-fuzz list                                      targets and what they are fed
       forebay-fuzz seeds TARGET FOLDER                       writes the seeds and the words (FOLDER.dict) of a target
       forebay-fuzz try TARGET FILE...                        runs inputs
       forebay-fuzz run TARGET [--minutes N] [--seed N]       mutates seeds and corpus, without coverage (1 minute, seed 1)";

    pub(super) fn main() -> ExitCode {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        match work(&words) {
            Ok(()) => ExitCode::SUCCESS,
            Err(what) => {
                eprintln!("forebay-fuzz: {what}");
                ExitCode::from(2)
            }
        }
    }

    fn work(words: &[&str]) -> Result<(), String> {
        match words {
            ["list"] => {
                for target in targets::ALL {
                    println!("{:14} {}", target.name, target.about);
                }
                Ok(())
            }
            ["seeds", name, folder] => seeds(find(name)?, Path::new(folder)),
            ["try", name, files @ ..] => {
                let target = find(name)?;
                for file in files {
                    let input = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
                    (target.run)(&input);
                }
                Ok(())
            }
            ["run", name, options @ ..] => run(find(name)?, options),
            _ => Err(USAGE.into()),
        }
    }

    fn find(name: &str) -> Result<&'static Target, String> {
        Target::find(name).ok_or_else(|| format!("no target {name}; `forebay-fuzz list` lists them"))
    }

    fn seeds(target: &Target, folder: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        std::fs::create_dir_all(folder).map_err(failed)?;
        for (number, seed) in (target.seeds)().into_iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number:03}")), seed).map_err(failed)?;
        }
        let mut words = std::fs::File::create(folder.with_extension("dict")).map_err(failed)?;
        for word in target.words {
            let hex: String = word.bytes().map(|byte| format!("\\x{byte:02x}")).collect();
            writeln!(words, "\"{hex}\"").map_err(failed)?;
        }
        Ok(())
    }

    fn run(target: &Target, options: &[&str]) -> Result<(), String> {
        let (mut minutes, mut seed) = (1, 1);
        for pair in options.chunks(2) {
            let number = pair.get(1).and_then(|text| text.parse().ok());
            match (pair[0], number) {
                ("--minutes", Some(number)) => minutes = number,
                ("--seed", Some(number)) => seed = number,
                _ => return Err(USAGE.into()),
            }
        }
        let inputs = target.inputs().map_err(|error| error.to_string())?;
        let mut random = Random::new(seed);
        // A panic ends the program: its input is already on disk.
        let last = PathBuf::from(format!("fuzz-{}-last", target.name));
        let until = Instant::now() + Duration::from_secs(60 * minutes);
        let mut tried = 0_u64;
        while Instant::now() < until {
            let input = mutated(&inputs, target.words, target.bytes_max, &mut random);
            if std::panic::catch_unwind(|| (target.run)(&input)).is_err() {
                std::fs::write(&last, &input).map_err(|error| error.to_string())?;
                return Err(format!("{} failed after {tried} inputs: {}", target.name, last.display()));
            }
            tried += 1;
        }
        println!("{}: {tried} inputs in {minutes} min, none failed", target.name);
        Ok(())
    }
}
