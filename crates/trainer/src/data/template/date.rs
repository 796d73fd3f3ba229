//! The date of a run, and `strftime` as Python has it in its C locale.

use serde::{Deserialize, Serialize};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
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

/// A moment in UTC: what `strftime_now` shows. A run keeps the one it began with.
///
/// ```
/// use trainer::data::Moment;
/// assert_eq!(Moment::from_unix(1_722_000_000).format("%d %b %Y").unwrap(), "26 Jul 2024");
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment {
    /// Seconds since 1970.
    seconds: i64,
}

impl Moment {
    /// The moment that lies so many seconds after the beginning of 1970.
    pub fn from_unix(seconds: i64) -> Self {
        Self { seconds }
    }

    /// The present.
    pub fn now() -> Self {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self { seconds: since.map_or(0, |since| since.as_secs() as i64) }
    }

    /// Seconds since the beginning of 1970.
    pub fn unix(self) -> i64 {
        self.seconds
    }

    /// The moment as `strftime` writes it.
    ///
    /// # Errors
    /// A directive that is not known, by name.
    pub fn format(self, format: &str) -> Result<String, String> {
        let days = self.seconds.div_euclid(86400);
        let second = self.seconds.rem_euclid(86400);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let (year, month, day) = civil(days);
        let of_year = days - days_before(year, 1, 1) + 1;
        let weekday = DAYS[(days + 4).rem_euclid(7) as usize];
        let month_name = MONTHS[month as usize - 1];
        let hour_of_12 = (hour + 11) % 12 + 1;

        let mut out = String::new();
        let mut characters = format.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                out.push(character);
                continue;
            }
            let mut directive = characters.next();
            let bare = directive == Some('-');
            if bare {
                directive = characters.next();
            }
            let number = |value: i64, width: usize| {
                if bare { value.to_string() } else { format!("{value:0width$}") }
            };
            out.push_str(&match directive {
                Some('Y') => number(year, 1),
                Some('y') => number(year.rem_euclid(100), 2),
                Some('m') => number(month, 2),
                Some('d') => number(day, 2),
                Some('e') if bare => day.to_string(),
                Some('e') => format!("{day:2}"),
                Some('j') => number(of_year, 3),
                Some('H') => number(hour, 2),
                Some('I') => number(hour_of_12, 2),
                Some('M') => number(minute, 2),
                Some('S') => number(second, 2),
                Some('B') => month_name.to_string(),
                Some('b') => month_name[..3].to_string(),
                Some('A') => weekday.to_string(),
                Some('a') => weekday[..3].to_string(),
                Some('p') => if hour < 12 { "AM" } else { "PM" }.to_string(),
                Some('F') => format!("{year}-{month:02}-{day:02}"),
                Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
                Some('%') => "%".to_string(),
                Some(other) => return Err(format!("strftime_now: directive `%{other}` is not supported")),
                None => return Err("strftime_now: the format ends in `%`".to_string()),
            });
        }
        Ok(out)
    }
}

/// Days from 1970-01-01 to a date of the Gregorian calendar, by years that begin in March, so that the leap day is
/// the last of its year.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let in_year = (153 * month_from_march + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + in_year - 719_468
}

/// Year, month and day of a number of days since 1970-01-01.
fn civil(days: i64) -> (i64, i64, i64) {
    // 146097 days are 400 years: the guess is right or one year off.
    let mut year = (days * 400).div_euclid(146_097) + 1970;
    while days_before(year + 1, 1, 1) <= days {
        year += 1;
    }
    while days_before(year, 1, 1) > days {
        year -= 1;
    }
    let month = (1..=12).rev().find(|&month| days_before(year, month, 1) <= days).unwrap_or(1);
    (year, month, days - days_before(year, month, 1) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected texts by Python's `datetime.fromtimestamp(s, timezone.utc).strftime`.
    #[test]
    fn moments_are_pythons() {
        let all = "%a %A %b %B %d %-d %e %H %-H %I %-I %j %m %-m %M %p %S %y %Y %F %T %%";
        for (seconds, expected) in [
            (
                0,
                "Thu Thursday Jan January 01 1  1 00 0 12 12 001 01 1 00 AM 00 70 1970 1970-01-01 00:00:00 %",
            ),
            (
                951_825_599,
                "Tue Tuesday Feb February 29 29 29 11 11 11 11 060 02 2 59 AM 59 00 2000 2000-02-29 11:59:59 %",
            ),
            (
                4_107_542_400,
                "Mon Monday Mar March 01 1  1 00 0 12 12 060 03 3 00 AM 00 00 2100 2100-03-01 00:00:00 %",
            ),
            (
                1_735_689_599,
                "Tue Tuesday Dec December 31 31 31 23 23 11 11 366 12 12 59 PM 59 24 2024 2024-12-31 23:59:59 %",
            ),
        ] {
            assert_eq!(Moment::from_unix(seconds).format(all).as_deref(), Ok(expected));
        }
        assert_eq!(
            Moment::default().format("%Q").expect_err("unknown"),
            "strftime_now: directive `%Q` is not supported"
        );
    }

    #[test]
    fn every_day_of_four_centuries_comes_back() {
        for days in -200_000..200_000 {
            let (year, month, day) = civil(days);
            assert_eq!(days_before(year, month, day), days);
        }
    }
}
