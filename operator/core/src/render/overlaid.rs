//! Objects whose pods have an overlay (`podTemplate`, `servicesPodTemplate`) or belong to a gang. Both may use fields
//! that the Rust types lack, so these objects are sent as JSON; all others as rendered.

use flux_shared::overlay::Overlay;
use serde::de::Error;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

/// The user's overlay on an object, and the object with it applied.
#[derive(Debug, Clone, PartialEq)]
pub struct AppliedOverlay {
    /// Field of the spec that holds the overlay.
    pub field: &'static str,
    /// The overlay as the user wrote it.
    pub overlay: Value,
    /// Path of the pod template in the object, such as `spec.template`. Empty if the object is a pod.
    pub at: &'static str,
    /// The object with the overlay applied, as it is sent.
    pub sent: Value,
}

impl AppliedOverlay {
    /// The pod template in `object`: in `sent`, or in the object that the API server makes of it.
    pub(super) fn template_in<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        object.pointer(&json_pointer(self.at))
    }
}

/// The JSON pointer for a path with dots. An empty path stands for the whole object.
fn json_pointer(path: &str) -> String {
    path.split('.')
        .filter(|part| !part.is_empty())
        .map(|part| format!("/{part}"))
        .collect()
}

/// A rendered object with the user's overlay, if there is one.
#[derive(Debug, Clone, PartialEq)]
pub struct Overlaid<K> {
    pub rendered: K,
    pub applied: Option<AppliedOverlay>,
    /// The object as it is sent, if it has no overlay but added fields.
    with_added_fields: Option<Value>,
}

impl<K: Serialize> Overlaid<K> {
    /// `rendered` with `overlay` applied to the pod template at the path `at`. `field`: the field of the spec that has
    /// the overlay.
    pub(super) fn new(
        rendered: K,
        overlay: Option<&Overlay>,
        field: &'static str,
        at: &'static str,
    ) -> Result<Overlaid<K>, serde_json::Error> {
        let applied = match overlay {
            None => None,
            Some(overlay) => {
                let mut sent = serde_json::to_value(&rendered)?;
                if let Some(template) = sent.pointer_mut(&json_pointer(at)) {
                    *template = overlay.over(template.take());
                }
                Some(AppliedOverlay {
                    field,
                    overlay: overlay.value().clone(),
                    at,
                    sent,
                })
            }
        };
        Ok(Overlaid {
            rendered,
            applied,
            with_added_fields: None,
        })
    }

    /// Adds fields to the object as it is sent. Each field is given by a JSON pointer to its parent (which is created
    /// if it is missing), its key and its value.
    pub(super) fn with_fields<const N: usize>(
        mut self,
        fields: [(String, &'static str, Value); N],
    ) -> Result<Overlaid<K>, serde_json::Error> {
        let mut sent = serde_json::to_value(&self)?;
        for (pointer, key, value) in fields {
            let mut parent = object(&mut sent)?;
            for part in pointer.split('/').filter(|part| !part.is_empty()) {
                parent = object(parent.entry(part).or_insert(Value::Null))?;
            }
            parent.insert(key.to_owned(), value);
        }
        match &mut self.applied {
            Some(applied) => applied.sent = sent,
            None => self.with_added_fields = Some(sent),
        }
        Ok(self)
    }
}

/// The value as a JSON object; null becomes an empty one.
fn object(value: &mut Value) -> Result<&mut Map<String, Value>, serde_json::Error> {
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value
        .as_object_mut()
        .ok_or_else(|| serde_json::Error::custom("a field cannot be put into a value that is not an object"))
}

/// Serialized as it is sent.
impl<K: Serialize> Serialize for Overlaid<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (&self.applied, &self.with_added_fields) {
            (Some(applied), _) => applied.sent.serialize(serializer),
            (None, Some(sent)) => sent.serialize(serializer),
            (None, None) => self.rendered.serialize(serializer),
        }
    }
}

/// Gives the rendered object, without the overlay and the fields of `with_fields`.
impl<K> std::ops::Deref for Overlaid<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.rendered
    }
}
