//! Helpers for the fuzz tests of `shared`, `agent` and `operator`: the examples, random damage to them, and a
//! time limit. The same seed gives the same damage, so a failure can be reproduced from its seed.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::repository::{repository, yaml_files};

/// Time limit of one input, in a debug build on a busy machine.
const BOUND: Duration = Duration::from_secs(30);

/// A generator of small random numbers (xorshift64*).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        // `| 1`: the state must not be 0, since it would stay 0.
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// 0 to `sides` - 1.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % sides.max(1)
    }

    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.roll(choices.len())]
    }
}

/// Text of every example.
pub fn texts() -> Vec<String> {
    yaml_files(&repository().join("examples"))
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect()
}

/// Every MiniCluster of the examples.
pub fn miniclusters() -> Vec<Value> {
    let documents = texts()
        .into_iter()
        .flat_map(|text| serde_saphyr::from_multiple::<Value>(&text).unwrap());
    documents
        .filter(|document| document["kind"] == "MiniCluster")
        .collect()
}

/// A value that is likely to cause errors.
fn nasty(dice: &mut Dice) -> Value {
    const TEXTS: [&str; 40] = [
        "",
        " ",
        "\0",
        "\n",
        "a\nb",
        "'",
        "\"",
        "\\",
        "$",
        "${",
        "${}",
        "$(x)",
        "`",
        "é",
        "\u{202e}",
        "😀",
        "..",
        "/",
        "//",
        "/..",
        "~",
        "-",
        "--",
        "a-",
        "-a",
        "A",
        "a.b",
        "a/b",
        "a=b",
        "a,b",
        "[",
        "a[0-9999999]",
        "a[1-]",
        "0x10",
        "1e999",
        "9Ei",
        "-5",
        "null",
        "true",
        "kary:99999999999",
    ];
    match dice.roll(12) {
        0 => Value::Null,
        1 => json!(dice.roll(2) == 0),
        2 => json!(
            [
                0,
                -1,
                1,
                65_535,
                65_536,
                i32::MAX as i64,
                i32::MIN as i64,
                i64::MAX,
                i64::MIN
            ][dice.roll(9)]
        ),
        3 => json!(1.5e300),
        4 => json!("x".repeat([63, 64, 253, 4097, 70_000, 1_000_001][dice.roll(6)])),
        5 => json!([]),
        6 => json!({}),
        7 => json!([nasty(dice), nasty(dice)]),
        8 => json!({ *dice.pick(&TEXTS): nasty(dice) }),
        _ => json!(*dice.pick(&TEXTS)),
    }
}

/// A random place in `value`.
fn place<'a>(value: &'a mut Value, dice: &mut Dice) -> &'a mut Value {
    let inside = match value {
        Value::Object(map) => map.len(),
        Value::Array(list) => list.len(),
        _ => 0,
    };
    if inside == 0 || dice.roll(8) == 0 {
        return value;
    }
    let index = dice.roll(inside);
    let inner = match value {
        Value::Object(map) => map.values_mut().nth(index),
        value => value.get_mut(index),
    };
    place(inner.unwrap(), dice)
}

/// Copies a random field of `from` into `into`. If both have an object there, mostly grafts within that object instead.
fn graft(into: &mut Map<String, Value>, from: &Map<String, Value>, dice: &mut Dice) {
    let Some((key, value)) = from.iter().nth(dice.roll(from.len())) else {
        return;
    };
    match (into.get_mut(key), value) {
        (Some(Value::Object(into)), Value::Object(from)) if dice.roll(4) > 0 => graft(into, from, dice),
        _ => drop(into.insert(key.clone(), value.clone())),
    }
}

/// One of `examples`, with parts of others and a few values replaced.
pub fn spoilt(examples: &[Value], dice: &mut Dice) -> Value {
    let mut document = dice.pick(examples).clone();
    for _ in 0..dice.roll(6) {
        let (Value::Object(into), Value::Object(from)) =
            (&mut document["spec"], &dice.pick(examples)["spec"])
        else {
            continue;
        };
        graft(into, from, dice);
        let from = &dice.pick(examples)["spec"]["containers"][0];
        if let (Some(Value::Object(into)), Value::Object(from)) =
            (document["spec"]["containers"].get_mut(0), from)
        {
            graft(into, from, dice);
        }
    }
    for _ in 0..dice.roll(4) {
        let value = nasty(dice);
        match place(&mut document["spec"], dice) {
            Value::Object(map) if dice.roll(2) == 0 => drop(map.insert("extra".into(), value)),
            Value::Array(list) if dice.roll(2) == 0 => list.push(value),
            place => *place = value,
        }
    }
    document
}

/// Runs `test` with new dice again and again for `FUZZ_SECONDS` (else `seconds`), from seed `FUZZ_SEED` (else
/// 0). Prints the number of inputs and, if one fails or takes too long, its seed.
pub fn for_a_while(seconds: u64, mut test: impl FnMut(&mut Dice)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let end = Instant::now() + Duration::from_secs(number("FUZZ_SECONDS").unwrap_or(seconds));
    let mut seed = number("FUZZ_SEED").unwrap_or(0);
    let first = seed;
    while Instant::now() < end {
        let start = Instant::now();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&mut Dice::new(seed))));
        if let Err(panic) = result {
            println!("failed with FUZZ_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
        assert!(
            start.elapsed() < BOUND,
            "FUZZ_SEED={seed} took {:?}",
            start.elapsed()
        );
        seed += 1;
    }
    println!("{} inputs", seed - first);
}
