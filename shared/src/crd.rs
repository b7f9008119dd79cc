//! The wire types of the custom resource, the conversion between its versions, and (feature `crd`) the
//! CustomResourceDefinition made of them.

/// Adds the derives and the serde attribute that the types of the spec and the status have in common.
macro_rules! block {
    ($(#[$meta:meta])* pub struct $name:ident { $($body:tt)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
        #[serde(rename_all = "camelCase")]
        pub struct $name { $($body)* }
    };
}

mod bounds;
pub mod convert;
#[cfg(feature = "crd")]
pub mod definition;
#[cfg(feature = "crd")]
mod rules;
#[cfg(feature = "crd")]
pub use rules::FIXED;
#[cfg(feature = "crd")]
mod schemas;
pub mod shape;
#[cfg(feature = "crd")]
mod unchanged;
#[cfg(feature = "crd")]
mod v1alpha1;
pub mod v1alpha2;
