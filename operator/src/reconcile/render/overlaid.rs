//! Objects whose pods have an overlay (`spec.podTemplate`) or belong to a gang. Both may use fields that the Rust types lack,
//! so these objects are sent as JSON; all others as rendered.

use flux_shared::overlay::Overlay;
use serde::de::Error;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

/// What lies over an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Cover {
    /// Of the spec.
    pub field: &'static str,
    /// As the user wrote it.
    pub overlay: Value,
    /// The path of the template in the object; empty: the object is a pod.
    pub at: &'static str,
    /// The object with the overlay on it, as it is sent.
    pub sent: Value,
}

/// An object, and what lies over it.
#[derive(Debug, Clone, PartialEq)]
pub struct Overlaid<K> {
    pub rendered: K,
    pub cover: Option<Cover>,
    /// As it is sent, where nothing lies over it and a field was put into it all the same.
    whole: Option<Value>,
}

impl<K: Serialize> Overlaid<K> {
    /// `rendered` with `overlay` on what stands at the JSON pointer.
    pub(super) fn new(
        rendered: K,
        overlay: Option<&Overlay>,
        field: &'static str,
        (pointer, at): (&str, &'static str),
    ) -> Result<Overlaid<K>, serde_json::Error> {
        let cover = match overlay {
            None => None,
            Some(overlay) => {
                let mut sent = serde_json::to_value(&rendered)?;
                if let Some(template) = sent.pointer_mut(pointer) {
                    *template = overlay.over(template.take());
                }
                Some(Cover { field, overlay: overlay.value().clone(), at, sent })
            }
        };
        Ok(Overlaid { rendered, cover, whole: None })
    }

    /// The same with fields in what is sent: each in the object at a JSON pointer, which is made if it is missing.
    pub(super) fn with<const N: usize>(
        mut self,
        fields: [(String, &'static str, Value); N],
    ) -> Result<Overlaid<K>, serde_json::Error> {
        let mut sent = serde_json::to_value(&self)?;
        for (pointer, key, value) in fields {
            let mut place = object(&mut sent)?;
            for part in pointer.split('/').filter(|part| !part.is_empty()) {
                place = object(place.entry(part).or_insert(Value::Null))?;
            }
            place.insert(key.to_owned(), value);
        }
        match &mut self.cover {
            Some(cover) => cover.sent = sent,
            None => self.whole = Some(sent),
        }
        Ok(self)
    }
}

/// The object that a value is, or is to be.
fn object(value: &mut Value) -> Result<&mut Map<String, Value>, serde_json::Error> {
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value
        .as_object_mut()
        .ok_or_else(|| serde_json::Error::custom("a field cannot be put into a value that is not an object"))
}

/// As it is sent.
impl<K: Serialize> Serialize for Overlaid<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (&self.cover, &self.whole) {
            (Some(cover), _) => cover.sent.serialize(serializer),
            (None, Some(whole)) => whole.serialize(serializer),
            (None, None) => self.rendered.serialize(serializer),
        }
    }
}

impl<K> std::ops::Deref for Overlaid<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.rendered
    }
}
