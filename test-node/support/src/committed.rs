//! Compares generated files with the committed ones.

use std::path::Path;

/// Compares the text with a committed file, and panics if they differ. With `UPDATE=1`, rewrites the file instead.
pub fn same(path: &Path, generated: &str) {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, generated).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    let difference = committed
        .lines()
        .zip(generated.lines())
        .enumerate()
        .find(|(_, (old, new))| old != new);
    assert!(
        committed == generated,
        "{} is stale (first difference: {difference:?}): `make generate` renews it",
        path.display()
    );
}
