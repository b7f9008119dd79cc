//! An image, as the values give it.

use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub struct Image {
    pub repository: String,
    pub tag: String,
    pub digest: String,
}

impl Image {
    /// Name of the image with its tag and digest; `usual_tag` if neither is given (a digest needs no tag).
    pub fn name(&self, usual_tag: &str) -> String {
        let tag = match (self.tag.as_str(), self.digest.as_str()) {
            ("", "") => usual_tag,
            (tag, _) => tag,
        };
        let Image { repository, digest, .. } = self;
        let part = |sign: &str, text: &str| if text.is_empty() { String::new() } else { format!("{sign}{text}") };
        format!("{repository}{}{}", part(":", tag), part("@", digest))
    }
}
