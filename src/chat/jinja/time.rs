//! `strftime_now`: the time now, in UTC, in a format of C's `strftime`.

use std::time::{SystemTime, UNIX_EPOCH};

use super::meter::Buffer;
use super::{Fault, Outcome};

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A time in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moment {
    year: i64,
    /// From 1.
    month: i64,
    /// From 1.
    day: i64,
    /// From 0.
    day_of_year: i64,
    /// 0 is Sunday.
    weekday: i64,
    hour: i64,
    minute: i64,
    second: i64,
    epoch: i64,
    microsecond: u32,
}

impl Moment {
    fn new(epoch: i64, microsecond: u32) -> Self {
        let (days, second) = (epoch.div_euclid(86_400), epoch.rem_euclid(86_400));
        // Years that begin in March, in eras of 400 of them.
        let from_march = days + 719_468;
        let (era, day_of_era) = (from_march.div_euclid(146_097), from_march.rem_euclid(146_097));
        let leap_days = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
        let year_of_era = (day_of_era - leap_days) / 365;
        let before = 365 * year_of_era + year_of_era / 4 - year_of_era / 100;
        let day_of_march_year = day_of_era - before;
        let march_month = (5 * day_of_march_year + 2) / 153;
        let day = day_of_march_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let day_of_year = if month > 2 {
            day_of_march_year + 59 + i64::from(leap)
        } else {
            day_of_march_year - 306
        };
        Self {
            year,
            month,
            day,
            day_of_year,
            weekday: (days + 4).rem_euclid(7),
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
            epoch,
            microsecond,
        }
    }
}

/// Writes the time now.
pub(super) fn write_now(out: &mut Buffer<'_>, format: &str) -> Outcome<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = i64::try_from(now.as_secs()).unwrap_or(0);
    write(out, &Moment::new(epoch, now.subsec_micros()), format)
}

fn write(out: &mut Buffer<'_>, at: &Moment, format: &str) -> Outcome<()> {
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.fill(c, 1)?;
            continue;
        }
        let mut directive = rest.next();
        let mut padding = None;
        if let Some(flag @ ('-' | '_' | '0' | '^' | '#')) = directive {
            padding = Some(flag);
            directive = rest.next();
        }
        let Some(directive) = directive else {
            return Err(Fault::new("strftime_now: `%` at the end of the format"));
        };
        one(out, at, directive, padding)?;
    }
    Ok(())
}

fn one(out: &mut Buffer<'_>, at: &Moment, directive: char, flag: Option<char>) -> Outcome<()> {
    let named = |names: &[&'static str], index: i64| -> &'static str {
        usize::try_from(index).ok().and_then(|index| names.get(index)).copied().unwrap_or_default()
    };
    let hour_12 = match at.hour % 12 {
        0 => 12,
        hour => hour,
    };
    let (number, width, fill) = match directive {
        'Y' => (at.year, 4, '0'),
        'C' => (at.year / 100, 2, '0'),
        'y' => (at.year.rem_euclid(100), 2, '0'),
        'm' => (at.month, 2, '0'),
        'd' => (at.day, 2, '0'),
        'e' => (at.day, 2, ' '),
        'H' => (at.hour, 2, '0'),
        'k' => (at.hour, 2, ' '),
        'I' => (hour_12, 2, '0'),
        'l' => (hour_12, 2, ' '),
        'M' => (at.minute, 2, '0'),
        'S' => (at.second, 2, '0'),
        'f' => (i64::from(at.microsecond), 6, '0'),
        'j' => (at.day_of_year + 1, 3, '0'),
        'u' => (if at.weekday == 0 { 7 } else { at.weekday }, 1, '0'),
        'w' => (at.weekday, 1, '0'),
        'U' => ((at.day_of_year + 7 - at.weekday) / 7, 2, '0'),
        'W' => ((at.day_of_year + 7 - (at.weekday + 6) % 7) / 7, 2, '0'),
        's' => (at.epoch, 1, '0'),
        _ => {
            let text = match directive {
                'A' => named(&DAYS, at.weekday),
                'a' => &named(&DAYS, at.weekday)[..3],
                'B' => named(&MONTHS, at.month - 1),
                'b' | 'h' => &named(&MONTHS, at.month - 1)[..3],
                'p' if at.hour < 12 => "AM",
                'p' => "PM",
                'Z' => "UTC",
                'z' => "+0000",
                'n' => "\n",
                't' => "\t",
                '%' => "%",
                'F' => return write(out, at, "%Y-%m-%d"),
                'T' | 'X' => return write(out, at, "%H:%M:%S"),
                'R' => return write(out, at, "%H:%M"),
                'r' => return write(out, at, "%I:%M:%S %p"),
                'D' | 'x' => return write(out, at, "%m/%d/%y"),
                'c' => return write(out, at, "%a %b %e %H:%M:%S %Y"),
                _ => {
                    let detail = format_args!("strftime_now: unknown directive %{directive}");
                    return Err(Fault::new(detail));
                }
            };
            let upper = flag == Some('^') || (flag == Some('#') && directive != 'p');
            return if upper { out.push(&text.to_uppercase()) } else { out.push(text) };
        }
    };
    let (width, fill) = match flag {
        Some('-') => (1, fill),
        Some('_') => (width, ' '),
        Some('0') => (width, '0'),
        _ => (width, fill),
    };
    let digits = number.to_string();
    out.fill(fill, usize::saturating_sub(width, digits.len()))?;
    out.push(&digits)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, Instant};

    use super::super::meter::{Limits, Meter};
    use super::*;

    fn written(epoch: i64, format: &str) -> String {
        let until = Instant::now() + Duration::from_secs(3600);
        let limits = Limits { steps: 1 << 20, bytes: 1 << 20, until, cancelled: &|| false };
        let mut out = Buffer::new(&Meter::new(limits)).unwrap();
        write(&mut out, &Moment::new(epoch, 42), format).unwrap();
        out.into_parts().0
    }

    #[test]
    fn times_are_written_as_pythons_strftime_does() {
        // Made with datetime.fromtimestamp(epoch, timezone.utc).strftime(format).
        for (epoch, format, wanted) in [
            (0, "%Y-%m-%d %H:%M:%S %A %j", "1970-01-01 00:00:00 Thursday 001"),
            (951_782_400, "%d %b %Y %a %j", "29 Feb 2000 Tue 060"),
            (1_709_251_199, "%-d %B %y %I:%M %p", "29 February 24 11:59 PM"),
            (1_735_689_599, "%F %T %j %U %W %u %w", "2024-12-31 23:59:59 366 52 53 2 2"),
            (4_107_542_399, "%e/%m/%Y%%", "28/02/2100%"),
            (1_000_000_000, "%H%M%S.%f", "014640.000042"),
        ] {
            assert_eq!(written(epoch, format), wanted, "{epoch} {format}");
        }
    }
}
