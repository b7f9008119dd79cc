//! Flux standard durations (RFC 23): a number and `ms`, `s`, `m`, `h` or `d`; a bare number is in seconds. Own code:
//! crates for durations accept other units.

/// Default of `connectTimeout`.
pub const DEFAULT_CONNECT_TIMEOUT: &str = "5s";

/// The duration in seconds, or why the text is not a duration.
pub fn seconds(text: &str) -> Result<f64, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        other => return Err(format!("unit `{other}` is not one of ms, s, m, h, d")),
    };
    // As the CRD's pattern: no sign, and digits at both sides of the point.
    let has_digits = number
        .splitn(2, '.')
        .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    match number.parse::<f64>() {
        Ok(value) if has_digits && value.is_finite() => Ok(value * factor),
        _ => Err(format!(
            "`{text}` is not a number followed by ms, s, m, h or d, such as 5s"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn durations_have_flux_units() {
        assert_eq!(seconds("5s"), Ok(5.0));
        assert_eq!(seconds("500ms"), Ok(0.5));
        assert_eq!(seconds("2"), Ok(2.0));
        assert_eq!(seconds("1.5h"), Ok(5400.0));
        for bad in [
            "",
            "s",
            "5x",
            "-1s",
            "5 seconds",
            "nan",
            ".5s",
            "5.s",
            "+5s",
            " 5s",
            "5s ",
            "1.2.3s",
            "1e3",
        ] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
