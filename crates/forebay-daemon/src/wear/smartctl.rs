//! Wear reports of disks: runs `smartctl --json` (smartmontools) and reads its output.
//!
//! NVMe reports wear in its health log. SATA reports it in the device statistics (ACS-3, page 7),
//! and in attributes whose numbers depend on the vendor: this module reads those that smartmontools
//! names alike for many models. SAS has an endurance indicator. Missing values are left out.
//!
//! The exit code of smartctl is a mask. Its two lowest bits mean that nothing could be read, the
//! others describe the disk. Fields: `smartctl.8` and the JSON output of versions 7.0 to 7.4.

use forebay_admin::WearInfo;
use serde_json::Value;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Longer than the report of any disk.
const JSON_BYTES_MAX: u64 = 4 << 20;
/// Time limit for waiting for a killed process; it may hang in the kernel forever.
const REAP: Duration = Duration::from_secs(1);
/// A unit of NVMe's counters: a thousand sectors of 512 bytes.
const NVME_UNIT_BYTES: u64 = 512_000;

/// Program and limit for querying disks.
#[derive(Clone, Debug)]
pub(crate) struct Smartctl {
    /// The program.
    pub(crate) program: PathBuf,
    /// Time limit for one disk.
    pub(crate) limit: Duration,
}

impl Smartctl {
    /// Returns the program of this machine.
    pub(crate) fn of_system() -> Self {
        Self { program: "smartctl".into(), limit: Duration::from_secs(20) }
    }

    /// Queries a disk. Waits for the answer, within the limit.
    ///
    /// # Errors
    /// There is no answer: the reason, and advice.
    pub(super) fn ask(&self, disk: &Path) -> Result<WearInfo, String> {
        let mut child = Command::new(&self.program)
            .args(["--json=c", "--xall"])
            .arg(disk)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => {
                    "smartctl is not installed (package smartmontools)".to_owned()
                }
                _ => format!("{} cannot be run: {error}", self.program.display()),
            })?;
        let (told, answer) = channel();
        let stdout = child.stdout.take();
        let reader = std::thread::Builder::new().name("smartctl".into()).spawn(move || {
            let mut text = String::new();
            let read = stdout.map(|out| out.take(JSON_BYTES_MAX).read_to_string(&mut text));
            let _ = told.send(matches!(read, Some(Ok(_))).then_some(text)); // the receiver may have given up
        });
        let text = match reader {
            Err(error) => Err(format!("cannot create a thread for smartctl: {error}")),
            Ok(_) => match answer.recv_timeout(self.limit) {
                Ok(Some(text)) => Ok(text),
                Ok(None) => Err("the output of smartctl is not text".to_owned()),
                Err(RecvTimeoutError::Timeout) => {
                    Err(format!("smartctl did not answer within {} s", self.limit.as_secs_f32()))
                }
                Err(RecvTimeoutError::Disconnected) => Err("smartctl printed nothing".to_owned()),
            },
        };
        if text.is_err() {
            let _ = child.kill(); // it may have ended
        }
        let end = Instant::now() + REAP;
        let code = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status.code(),
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                _ => {
                    let _ = child.kill();
                    // A detached thread waits for a process that hangs in the kernel.
                    let _ = std::thread::Builder::new().name("smartctl".into()).spawn(move || child.wait());
                    break None;
                }
            }
        };
        parse(disk, &text?, code)
    }
}

/// Parses smartctl's output for a disk.
fn parse(disk: &Path, text: &str, code: Option<i32>) -> Result<WearInfo, String> {
    let json: Value =
        serde_json::from_str(text).map_err(|error| format!("the output of smartctl is not JSON: {error}"))?;
    let code = json["smartctl"]["exit_status"].as_i64().or(code.map(i64::from)).unwrap_or(0);
    if code & 0b11 != 0 {
        let said = json["smartctl"]["messages"][0]["string"].as_str().unwrap_or("no reason is given");
        let denied = said.to_ascii_lowercase().contains("permission denied")
            || said.to_ascii_lowercase().contains("operation not permitted");
        let hint = if denied { ": the daemon needs CAP_SYS_RAWIO, and for NVMe CAP_SYS_ADMIN" } else { "" };
        return Err(format!("smartctl cannot query {}: {said}{hint}", disk.display()));
    }
    let mut wear = WearInfo {
        disk: disk.display().to_string(),
        model: text_of(&json["model_name"]).or(text_of(&json["scsi_model_name"])).unwrap_or_default(),
        capacity_bytes: json["user_capacity"]["bytes"].as_u64(),
        failing: json["smart_status"]["passed"].as_bool() == Some(false) || code & 0b1000 != 0,
        ..WearInfo::default()
    };
    nvme(&json["nvme_smart_health_information_log"], &mut wear);
    ata(&json, &mut wear);
    scsi(&json, &mut wear);
    // smartctl 7.4 and later report it for all of them.
    let current = |name: &str, of: &str| json[name][of].as_u64();
    wear.used_pct = wear.used_pct.or(current("endurance_used", "current_percent"));
    wear.spare_pct = wear.spare_pct.or(current("spare_available", "current_percent"));
    wear.spare_least_pct = wear.spare_least_pct.or(current("spare_available", "threshold_percent"));
    let says = wear.used_pct.is_some() || wear.written_bytes.is_some() || wear.spare_pct.is_some();
    if !says && !wear.failing {
        return Err(format!("{} does not report its wear", disk.display()));
    }
    Ok(wear)
}

fn text_of(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn nvme(log: &Value, wear: &mut WearInfo) {
    if !log.is_object() {
        return;
    }
    wear.used_pct = log["percentage_used"].as_u64();
    wear.spare_pct = log["available_spare"].as_u64();
    wear.spare_least_pct = log["available_spare_threshold"].as_u64();
    wear.written_bytes =
        log["data_units_written"].as_u64().map(|units| units.saturating_mul(NVME_UNIT_BYTES));
    wear.media_errors = log["media_errors"].as_u64();
    // NVM Express base specification, figure "SMART / Health Information Log".
    const WARNINGS: [&str; 6] = [
        "spare blocks are short",
        "its temperature is out of range",
        "its reliability is degraded",
        "it is read-only",
        "the backup of its memory failed",
        "its persistent memory is read-only",
    ];
    let bits = log["critical_warning"].as_u64().unwrap_or(0);
    wear.warnings = WARNINGS
        .iter()
        .enumerate()
        .filter(|(bit, _)| bits >> bit & 1 == 1)
        .map(|(_, it)| (*it).into())
        .collect();
}

fn ata(json: &Value, wear: &mut WearInfo) {
    let sector = json["logical_block_size"].as_u64().unwrap_or(512);
    let pages = json["ata_device_statistics"]["pages"].as_array();
    let statistic = |page: u64, name: &str| {
        let page = pages?.iter().find(|it| it["number"].as_u64() == Some(page))?;
        page["table"].as_array()?.iter().find(|it| it["name"].as_str() == Some(name))?["value"].as_u64()
    };
    let table = json["ata_smart_attributes"]["table"].as_array();
    let attribute = |names: &[&str], field: fn(&Value) -> Option<u64>| {
        let named = |it: &&Value| it["name"].as_str().is_some_and(|name| names.contains(&name));
        table?.iter().find(named).and_then(field)
    };
    let raw = |it: &Value| it["raw"]["value"].as_u64();
    let left = |it: &Value| it["value"].as_u64().filter(|left| *left <= 100).map(|left| 100 - left);
    wear.used_pct =
        wear.used_pct.or_else(|| statistic(7, "Percentage Used Endurance Indicator")).or_else(|| {
            attribute(
                &[
                    "Media_Wearout_Indicator",
                    "SSD_Life_Left",
                    "Percent_Lifetime_Remain",
                    "Wear_Leveling_Count",
                ],
                left,
            )
        });
    let sectors = statistic(1, "Logical Sectors Written").or_else(|| attribute(&["Total_LBAs_Written"], raw));
    let gib =
        || attribute(&["Host_Writes_GiB", "Lifetime_Writes_GiB"], raw).map(|gib| gib.saturating_mul(1 << 30));
    let units = || attribute(&["Host_Writes_32MiB"], raw).map(|units| units.saturating_mul(32 << 20));
    let written = sectors.map(|sectors| sectors.saturating_mul(sector)).or_else(gib).or_else(units);
    wear.written_bytes = wear.written_bytes.or(written);
    let errors = || attribute(&["Reported_Uncorrect", "Uncorrectable_Error_Cnt"], raw);
    wear.media_errors = wear.media_errors.or_else(errors);
}

fn scsi(json: &Value, wear: &mut WearInfo) {
    wear.used_pct = wear.used_pct.or(json["scsi_percentage_used_endurance_indicator"].as_u64());
    let written = &json["scsi_error_counter_log"]["write"];
    let gigabytes = written["gigabytes_processed"].as_str().and_then(|text| text.parse::<f64>().ok());
    let gigabytes = gigabytes.filter(|gigabytes| gigabytes.is_finite() && *gigabytes >= 0.0);
    wear.written_bytes = wear.written_bytes.or(gigabytes.map(|gigabytes| (gigabytes * 1e9) as u64));
    wear.media_errors = wear.media_errors.or(written["total_uncorrected_errors"].as_u64());
}

#[cfg(test)]
#[path = "smartctl_tests.rs"]
mod tests;
