//! The few date formats that chat templates ask for (`strftime_now("%d %b %Y")` in Llama 3's). UTC; English names.
//!
//! Invariant: total; a format that is not known is left as it stands.

const MONTHS: [&str; 12] =
    ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Year, month 1 to 12 and day 1 to 31 of a day counted from 1970-01-01. Hinnant: chrono-Compatible Low-Level Date Algorithms.
fn civil(days: u64) -> (u64, usize, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let doe = z % 146_097;
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + u64::from(month <= 2), month as usize, doy - (153 * mp + 2) / 5 + 1)
}

/// `format` for the time `seconds` after 1970.
pub(super) fn strftime(format: &str, seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (name, weekday) = (MONTHS[month - 1], DAYS[(days % 7) as usize]);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out += &year.to_string(),
            Some('m') => out += &format!("{month:02}"),
            Some('d') => out += &format!("{day:02}"),
            Some('B') => out += name,
            Some('b') => out += &name[..3],
            Some('A') => out += weekday,
            Some('a') => out += &weekday[..3],
            Some('H') => out += &format!("{:02}", of_day / 3_600),
            Some('M') => out += &format!("{:02}", of_day / 60 % 60),
            Some('S') => out += &format!("{:02}", of_day % 60),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(strftime("%A %d %B %Y %H:%M:%S", 0), "Thursday 01 January 1970 00:00:00");
        assert_eq!(strftime("%a %d %b %Y %H:%M:%S", 1_709_251_199), "Thu 29 Feb 2024 23:59:59");
        assert_eq!(strftime("%Y-%m-%d", 1_709_251_200), "2024-03-01");
        assert_eq!(strftime("100%% %q %", 0), "100% %q %");
    }
}
