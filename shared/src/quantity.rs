//! Kubernetes quantities as text: `500M`, `4`, `0.5`, `64Gi`. The type reads numbers in YAML or JSON as well.
//!
//! Own code: k8s-openapi's `Quantity` is a string without any check. The text stays as the user wrote it.

use serde::{Deserialize, Deserializer, Serialize, de};

/// A quantity as the user wrote it. [`Quantity::check`] checks it, not deserialization, so that validation can name the
/// field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Quantity(pub String);

impl Quantity {
    /// Checks that Kubernetes accepts the quantity. The error says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let text = self.0.as_str();
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let digits = unsigned
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(digits);
        let number_ok = number.matches('.').count() <= 1 && number.chars().any(|c| c.is_ascii_digit());
        let suffix_ok = scale(suffix).is_some() || is_exponent(suffix);
        if number_ok && suffix_ok {
            Ok(())
        } else {
            Err(format!(
                "`{text}` is not a Kubernetes quantity: use a number and one of m, k, M, G, T, Ki, Mi, Gi, Ti (such as 500M or 64Gi)"
            ))
        }
    }

    /// The amount in units. None if the text is no quantity.
    pub fn value(&self) -> Option<f64> {
        self.check().ok()?;
        let text = self.0.as_str();
        // Without a suffix, or with an exponent.
        if let Ok(number) = text.parse() {
            return Some(number);
        }
        let (number, suffix) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
        Some(number.parse::<f64>().ok()? * scale(suffix)?)
    }
}

/// The factor of a suffix. None: there is no such suffix.
fn scale(suffix: &str) -> Option<f64> {
    let (base, power): (f64, i32) = match suffix {
        "n" => (1000.0, -3),
        "u" => (1000.0, -2),
        "m" => (1000.0, -1),
        "" => (1000.0, 0),
        "k" => (1000.0, 1),
        "M" => (1000.0, 2),
        "G" => (1000.0, 3),
        "T" => (1000.0, 4),
        "P" => (1000.0, 5),
        "E" => (1000.0, 6),
        "Ki" => (1024.0, 1),
        "Mi" => (1024.0, 2),
        "Gi" => (1024.0, 3),
        "Ti" => (1024.0, 4),
        "Pi" => (1024.0, 5),
        "Ei" => (1024.0, 6),
        _ => return None,
    };
    Some(base.powi(power))
}

/// Whether the suffix is a decimal exponent, such as `e3` or `E-2`. (Kubernetes also reads more than two digits, which no
/// quantity needs.)
fn is_exponent(suffix: &str) -> bool {
    suffix.strip_prefix(['e', 'E']).is_some_and(|rest| {
        let digits = rest.strip_prefix(['+', '-']).unwrap_or(rest);
        !digits.is_empty() && digits.len() < 3 && digits.chars().all(|c| c.is_ascii_digit())
    })
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;
            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a quantity (a string such as \"500M\", or a number)")
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Quantity, E> {
                Ok(Quantity(value.to_owned()))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Quantity, E> {
                Ok(Quantity(value.to_string()))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Quantity, E> {
                Ok(Quantity(value.to_string()))
            }
            // From `podTemplate`, as in a pod. In the spec's own quantities, `crd::shape` and the API server reject
            // fractions that are no text.
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Quantity, E> {
                Ok(Quantity(value.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(feature = "crd")]
impl schemars::JsonSchema for Quantity {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "x-kubernetes-int-or-string": true })
    }
}

#[cfg(test)]
mod tests {
    use super::Quantity;

    #[test]
    fn quantities_are_those_of_kubernetes() {
        for good in ["4", "0.5", "500M", "64Gi", "100m", "1e3", "1E-2", "+5", ".5"] {
            assert_eq!(Quantity(good.into()).check(), Ok(()), "{good}");
        }
        let values = [
            ("4", 4.0),
            ("500m", 0.5),
            ("2k", 2e3),
            ("1.5Gi", 1.5 * 1_073_741_824.0),
            ("1e3", 1e3),
            ("1E-2", 0.01),
            ("2M", 2e6),
            ("3n", 3e-9),
        ];
        for (text, value) in values {
            let found = Quantity(text.into()).value().unwrap();
            assert!((found - value).abs() <= value * 1e-9, "{text}: {found}");
        }
        assert_eq!(Quantity("64GB".into()).value(), None);
        for bad in ["", "64GB", "five", "1.2.3", "1 Gi", "Gi", "1e"] {
            assert!(Quantity(bad.into()).check().is_err(), "{bad}");
        }
    }
}
