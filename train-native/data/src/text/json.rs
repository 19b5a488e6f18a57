//! JSON objects of strangers: no field twice, and no more values than memory can take.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Values of a line, where an object counts as eight: in memory they take up to eighty times as
/// much room as in the file.
const MOST_VALUES: usize = 8_000_000;
const OBJECT: usize = 8;

/// A line as an object.
///
/// # Errors
/// No JSON, no object, a name that comes twice, or too many values.
pub fn object(line: &str) -> serde_json::Result<Map<String, Value>> {
    let left = Cell::new(MOST_VALUES);
    let mut reader = serde_json::Deserializer::from_str(line);
    let value = Any(&left).deserialize(&mut reader)?;
    reader.end()?;
    match value {
        Value::Object(fields) => Ok(fields),
        Value::Array(_) => Err(serde_json::Error::custom(
            "a list, not an object; write one object a line (jq -c '.[]')",
        )),
        _ => Err(serde_json::Error::custom("not an object")),
    }
}

/// Any value, as long as some are left.
#[derive(Clone, Copy)]
struct Any<'a>(&'a Cell<usize>);

impl Any<'_> {
    fn take<E: serde::de::Error>(self, count: usize) -> Result<(), E> {
        let left = self.0.get().checked_sub(count);
        let left = left.ok_or_else(|| E::custom(format!("more than {MOST_VALUES} values")))?;
        self.0.set(left);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Any<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.take(1)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Any<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        self.take(OBJECT)?;
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value_seed(self)?;
            if fields.contains_key(&name) {
                return Err(A::Error::custom(format!("the field {name:?} is there twice")));
            }
            fields.insert(name, value);
        }
        Ok(fields.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_read_as_serde_json_reads_them() {
        let line =
            r#"{"a": [1, -2, 0.5, null, true, "é\n"], "b": {"c": {}}, "d": 18446744073709551615}"#;
        let expected: Map<String, Value> = serde_json::from_str(line).unwrap();
        assert_eq!(object(line).unwrap(), expected);
    }

    #[test]
    fn what_is_ambiguous_or_endless_is_refused() {
        let nested = format!("{{\"a\":{}{}}}", "[".repeat(500), "]".repeat(500));
        let many = format!("{{\"a\":[{}0]}}", "0,".repeat(MOST_VALUES));
        for (line, word) in [
            (r#"{"a": 1, "a": 2}"#, "twice"),
            (r#"{"a": {"b": 1, "b": 2}}"#, "twice"),
            (r#"[{"a": 1}]"#, "a list"),
            ("3", "not an object"),
            (r#"{"a": 1} {"a": 1}"#, "trailing"),
            (r#"{"a": NaN}"#, "expected"),
            (r#"{"a": 1e999}"#, "out of range"),
            (&nested, "recursion"),
            (&many, "values"),
        ] {
            let error = object(line).unwrap_err().to_string();
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}
