//! The wire types of the custom resource, and (feature `crd`) the CustomResourceDefinition made of them.

#[cfg(feature = "crd")]
pub mod definition;
#[cfg(feature = "crd")]
mod rules;
pub mod v1alpha2;
