//! A job's output arrives complete, in order and byte for byte, with the fake Flux or with real Flux (`make
//! test-flux`).

use std::path::Path;
use std::time::Duration;

use crate::instance::{images, start, submit};
use crate::live::Network;

const LINES: usize = 200_000;
const LONG: usize = 1 << 20;

/// A script with only shell builtins: many lines, one long line, and bytes that are not text.
const WRITES: &str = r"
i=0
while [ $i -lt 200000 ]; do echo line $i of the flood; i=$((i + 1)); done
x=x
i=0
while [ $i -lt 20 ]; do x=$x$x; i=$((i + 1)); done
echo $x
printf 'step 1\rstep 2\r\n\033[1;31mred\033[0m\ttab\n'
printf 'bytes \001\177\200\377\376 of no text\n'
printf 'no end of a line'
";

fn written() -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..LINES)
        .flat_map(|line| format!("line {line} of the flood\n").into_bytes())
        .collect();
    bytes.extend(std::iter::repeat_n(b'x', LONG));
    bytes.extend(
        b"\nstep 1\rstep 2\r\n\x1b[1;31mred\x1b[0m\ttab\nbytes \x01\x7f\x80\xff\xfe of no text\nno end of a line",
    );
    bytes
}

fn assert_same(folder: &Path, name: &str, want: &[u8]) {
    let got = std::fs::read(folder.join(name)).unwrap();
    let at = got
        .iter()
        .zip(want)
        .take_while(|(one, other)| one == other)
        .count();
    let around = |bytes: &[u8]| {
        String::from_utf8_lossy(&bytes[at.saturating_sub(40).min(bytes.len())..(at + 40).min(bytes.len())])
            .into_owned()
    };
    assert!(
        got == want,
        "{} bytes in place of {}, the first difference at {at}: {:?} in place of {:?}",
        got.len(),
        want.len(),
        around(&got),
        around(want)
    );
}

#[test]
fn long_and_binary_output_arrives_unchanged() {
    let images = images(&submit(WRITES), 1);
    let mut pod = start(&images, &Network::new(), &[]).remove(0);
    assert_eq!(pod.code_within(Duration::from_secs(900)), 0);
    assert_same(pod.folder.path(), "out", &written());
}
