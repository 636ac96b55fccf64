//! Points in time as users write them, and as they are shown.
//!
//! `now`, `-1h` (and `-1h30m`, `-2d`, `-1w`) from now; RFC 3339 (`2026-01-31T14:30:00Z`, any
//! offset); `yesterday` (its midnight) and `yesterday 14:30`; local time as `2026-01-31 14:30[:15]`,
//! a day alone (its midnight) or `14:30` of today.

use std::time::{SystemTime, UNIX_EPOCH};

const NANOS: i64 = 1_000_000_000;

/// What `--from` and `--to` take, in one line.
pub const FORMS: &str = "`now`, `-1h`, `14:30`, `today`, `yesterday 14:30`, `2026-01-31`, \
                         `2026-01-31 14:30` (local time) or RFC 3339";

/// A point in time, possibly relative to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Nanoseconds before now.
    Ago(i64),
    /// Nanoseconds since 1970.
    At(i64),
    /// A time of today or of the day before, in seconds.
    Today(i64),
    Yesterday(i64),
}

impl When {
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("now") {
            return Ok(Self::Ago(0));
        }
        if let Some(span) = text.strip_prefix('-') {
            return parse_span(span).map(Self::Ago);
        }
        let unknown = || format!("`{text}` is no time: use {FORMS}");
        if let Some(seconds) = clock(text) {
            return Ok(Self::Today(seconds));
        }
        let (word, rest) = text.split_once(' ').unwrap_or((text, "00:00"));
        for (day, of_day) in
            [("today", Self::Today as fn(i64) -> Self), ("yesterday", Self::Yesterday)]
        {
            if word.eq_ignore_ascii_case(day) {
                return clock(rest.trim()).map(of_day).ok_or_else(unknown);
            }
        }
        let (date, rest) = match text.split_once(['T', 't', ' ']) {
            Some((date, rest)) => (date, rest.trim()),
            None => (text, ""),
        };
        let day = Day::parse(date).ok_or_else(unknown)?;
        if rest.is_empty() {
            return day.local(0).map(Self::At).ok_or_else(unknown);
        }
        let (time, offset) = split_offset(rest).ok_or_else(unknown)?;
        let (time, fraction) = split_fraction(time).ok_or_else(unknown)?;
        let seconds = clock(time).ok_or_else(unknown)?;
        let at = match offset {
            Some(offset) => day.universal(seconds.saturating_sub(offset)),
            None => day.local(seconds),
        };
        at.map(|at| Self::At(at.saturating_add(fraction))).ok_or_else(unknown)
    }

    /// Nanoseconds since 1970.
    pub fn at(self, now: i64) -> i64 {
        match self {
            Self::Ago(span) => now.saturating_sub(span),
            Self::At(at) => at,
            Self::Today(seconds) => {
                let today = Day::of(now).and_then(|day| day.local(seconds));
                today.unwrap_or(now)
            }
            Self::Yesterday(seconds) => {
                // From its noon, because a day has 23 hours twice a year.
                let noon = Day::of(now).and_then(|day| day.local(12 * 3_600));
                let before = noon.and_then(|noon| Day::of(noon.saturating_sub(86_400 * NANOS)));
                before.and_then(|day| day.local(seconds)).unwrap_or(now)
            }
        }
    }
}

/// A length of time with units: `90s`, `30m`, `1h30m`, `2d`, `1w`. In nanoseconds.
pub fn parse_span(text: &str) -> Result<i64, String> {
    let wrong =
        || format!("`{text}` is no length of time: use s, m, h, d or w, as in 30m or 1h30m");
    let mut rest = text.trim();
    let mut total = 0_i64;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
        let (number, after) = rest.split_at(end.ok_or_else(wrong)?);
        let end = after.find(|letter: char| letter.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let seconds = match unit.trim() {
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            "w" => 7.0 * 86_400.0,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        // Saturates.
        total = total.saturating_add((number * seconds * NANOS as f64) as i64);
        rest = after;
    }
    Ok(total)
}

/// `14:30` or `14:30:15`, in seconds.
fn clock(text: &str) -> Option<i64> {
    let mut parts = text.split(':');
    let hour = digits(parts.next()?, 2)?;
    let minute = digits(parts.next()?, 2)?;
    let second = parts.next().map_or(Some(0), |second| digits(second, 2))?;
    let is_one = parts.next().is_none() && hour < 24 && minute < 60 && second <= 60;
    is_one.then(|| hour * 3_600 + minute * 60 + second)
}

fn digits(text: &str, most: usize) -> Option<i64> {
    let is_one = !text.is_empty() && text.len() <= most && text.bytes().all(|b| b.is_ascii_digit());
    if is_one { text.parse().ok() } else { None }
}

/// Cuts off `Z`, `+01:00` or `-0530`; `Some(None)` without one.
fn split_offset(text: &str) -> Option<(&str, Option<i64>)> {
    if let Some(time) = text.strip_suffix(['Z', 'z']) {
        return Some((time, Some(0)));
    }
    let Some(at) = text.find(['+', '-']) else { return Some((text, None)) };
    let (time, offset) = text.split_at_checked(at)?;
    let (sign, offset) = match offset.split_at_checked(1)? {
        ("-", offset) => (-1, offset),
        (_, offset) => (1, offset),
    };
    let (hours, minutes) = match offset.split_once(':') {
        Some(parts) => parts,
        None => offset.split_at_checked(2)?,
    };
    let (hours, minutes) = (digits(hours, 2)?, digits(minutes, 2)?);
    (hours < 24 && minutes < 60)
        .then(|| (time.trim_end(), Some(sign * (hours * 3_600 + minutes * 60))))
}

/// Cuts off a fraction of a second; in nanoseconds.
fn split_fraction(text: &str) -> Option<(&str, i64)> {
    let Some((time, fraction)) = text.split_once('.') else { return Some((text, 0)) };
    let known: String = fraction.chars().take(9).collect();
    let scale = 10_i64.pow(9_u32.saturating_sub(u32::try_from(known.len()).ok()?));
    fraction.bytes().all(|byte| byte.is_ascii_digit()).then_some(())?;
    Some((time, digits(&known, 9)?.saturating_mul(scale)))
}

#[derive(Clone, Copy)]
struct Day {
    year: i32,
    month: i32,
    day: i32,
}

impl Day {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let year = parts.next().filter(|year| year.len() == 4)?;
        let (month, day) = (parts.next()?, parts.next()?);
        let [year, month, day] = [digits(year, 4)?, digits(month, 2)?, digits(day, 2)?];
        let is_day = parts.next().is_none() && (1..=12).contains(&month) && (1..=31).contains(&day);
        let small = |number: i64| i32::try_from(number).ok();
        is_day.then_some(Self { year: small(year)?, month: small(month)?, day: small(day)? })
    }

    /// The local day of a time.
    fn of(nanos: i64) -> Option<Self> {
        let local = local(nanos)?;
        Some(Self { year: local.tm_year + 1900, month: local.tm_mon + 1, day: local.tm_mday })
    }

    fn fields(self, seconds: i64) -> Option<libc::tm> {
        // SAFETY: a `tm` of zeros is a valid one.
        let mut fields: libc::tm = unsafe { std::mem::zeroed() };
        fields.tm_year = self.year - 1900;
        fields.tm_mon = self.month - 1;
        fields.tm_mday = self.day;
        // The calls below carry what is too much of one field into the next.
        fields.tm_hour = i32::try_from(seconds.div_euclid(3_600)).ok()?;
        fields.tm_min = i32::try_from(seconds.rem_euclid(3_600) / 60).ok()?;
        fields.tm_sec = i32::try_from(seconds.rem_euclid(60)).ok()?;
        Some(fields)
    }

    fn local(self, seconds: i64) -> Option<i64> {
        let mut fields = self.fields(seconds)?;
        // The time zone decides whether daylight saving time applies.
        fields.tm_isdst = -1;
        // SAFETY: a valid `tm` of our own.
        let time = unsafe { libc::mktime(&raw mut fields) };
        self.checked(time, fields.tm_mday, seconds)
    }

    fn universal(self, seconds: i64) -> Option<i64> {
        // An offset may lead into the day before or after: only the date itself is checked.
        let mut midnight = self.fields(0)?;
        // SAFETY: a valid `tm` of our own.
        let time = unsafe { libc::timegm(&raw mut midnight) };
        self.checked(time, midnight.tm_mday, 0)?.checked_add(seconds.checked_mul(NANOS)?)
    }

    /// Refuses the 31st of a shorter month, which the calls above make the next one's first.
    fn checked(self, time: libc::time_t, day: i32, seconds: i64) -> Option<i64> {
        let is_same = day == self.day || seconds >= 86_400;
        if is_same { time.checked_mul(NANOS) } else { None }
    }
}

fn local(nanos: i64) -> Option<libc::tm> {
    let time: libc::time_t = nanos.div_euclid(NANOS);
    // SAFETY: both are ours; a `tm` of zeros is a valid one.
    unsafe {
        let mut fields: libc::tm = std::mem::zeroed();
        let done = libc::localtime_r(&raw const time, &raw mut fields);
        (!done.is_null()).then_some(fields)
    }
}

/// Nanoseconds since 1970.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// The local time zone at a time: `UTC`, `+01:00`.
pub fn zone(nanos: i64) -> String {
    match local(nanos).map(|at| at.tm_gmtoff / 60) {
        None | Some(0) => "UTC".to_owned(),
        Some(minutes) => {
            let sign = if minutes < 0 { '-' } else { '+' };
            format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60)
        }
    }
}

/// `2026-01-31 14:30:15`, in local time: a form that [`When::parse`] takes.
pub fn show(nanos: i64) -> String {
    match local(nanos) {
        Some(at) => format!(
            "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
            at.tm_year + 1900,
            at.tm_mon + 1,
            at.tm_mday,
            at.tm_hour,
            at.tm_min,
            at.tm_sec
        ),
        None => format!("{} s since 1970", nanos.div_euclid(NANOS)),
    }
}

#[cfg(test)]
mod tests {
    use super::{NANOS, When, parse_span, show};

    const NOON: i64 = 1_769_860_800 * NANOS;

    #[test]
    fn spans_count_back_from_now() {
        for (text, seconds) in [
            ("now", 0),
            ("-1h", 3_600),
            ("-30m", 1_800),
            ("-90s", 90),
            ("-1h30m", 5_400),
            ("-1.5h", 5_400),
            ("-2d", 172_800),
            ("-1w", 604_800),
        ] {
            assert_eq!(When::parse(text).map(|when| when.at(NOON)), Ok(NOON - seconds * NANOS));
        }
    }

    #[test]
    fn rfc_3339_says_its_own_offset() {
        for (text, seconds) in [
            ("2026-01-31T12:00:00Z", 0),
            ("2026-01-31T13:00:00+01:00", 0),
            ("2026-01-31 06:30:00-0530", 0),
            ("2026-02-01T01:30:00+13:30", 0),
            ("2026-01-31t12:00:00z", 0),
            ("2026-01-31T12:00Z", 0),
            ("2026-01-31T11:59:59Z", -1),
        ] {
            let when = When::parse(text).map(|when| when.at(0));
            assert_eq!(when, Ok(NOON + seconds * NANOS), "{text}");
        }
        assert_eq!(
            When::parse("2026-01-31T12:00:00.25Z").map(|when| when.at(0)),
            Ok(NOON + NANOS / 4)
        );
    }

    #[test]
    fn local_times_are_what_is_shown() {
        for text in ["2026-01-31 14:30:15", "2024-02-29 00:00:00", "2026-07-01 23:59:59"] {
            let at = When::parse(text).map(|when| when.at(0));
            assert_eq!(at.map(show), Ok(text.to_owned()));
        }
        let short = When::parse("2026-01-31 14:30");
        assert_eq!(short, When::parse("2026-01-31T14:30:00"));
        assert_eq!(When::parse("2026-01-31"), When::parse("2026-01-31 00:00"));
        let today = When::parse("14:30").map(|when| show(when.at(NOON)));
        assert_eq!(today.map(|text| text.ends_with("14:30:00")), Ok(true));
        let at = |text: &str| When::parse(text).map(|when| when.at(NOON));
        let day = 86_400 * NANOS;
        assert_eq!(at("yesterday 14:30"), at("14:30").map(|at| at - day));
        assert_eq!(at("yesterday"), at("today").map(|at| at - day));
    }

    #[test]
    fn what_is_no_time_is_refused_and_says_what_is() {
        for text in [
            "",
            "-",
            "-1",
            "-h",
            "-1y",
            "tomorrow",
            "yesterday 25:00",
            "2026-02-30",
            "2026-13-01",
            "2026-01-01 25:00",
            "2026-1",
            "24:00",
            "12:60",
            "2026-01-31T12:00:00+1",
            "1e9",
            "-1h?",
            "2026-01-31T12:00:00.xZ",
        ] {
            let error = When::parse(text).expect_err(text);
            assert!(error.contains("use "), "{error}");
        }
        assert_eq!(parse_span("1d"), Ok(86_400 * NANOS));
    }
}
