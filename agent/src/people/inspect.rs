//! What the judgement of a pod is made from.

use super::Pod;
use crate::failure::Failure;

pub struct Findings {
    pub notice: Option<String>,
}

pub fn findings(pod: &Pod) -> Result<Findings, Failure> {
    Ok(Findings { notice: pod.instance.notice.clone() })
}
