//! Several sequences as one, and the shortest words for where a part of it belongs.

use std::ops::{BitAnd, BitOr, Not};

/// Numbers of a mask: for as many as eleven switches.
const NUMBERS: usize = 2048;

/// A set of numbers, with a bit for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mask([u64; NUMBERS / 64]);

impl Mask {
    const ALL: Mask = Mask([u64::MAX; NUMBERS / 64]);

    fn of(number: usize) -> Mask {
        let mut mask = Mask([0; NUMBERS / 64]);
        mask.0[number / 64] = 1 << (number % 64);
        mask
    }

    fn has(self, number: usize) -> bool {
        self & Mask::of(number) == Mask::of(number)
    }
}

impl BitAnd for Mask {
    type Output = Mask;

    fn bitand(self, other: Mask) -> Mask {
        Mask(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }
}

impl BitOr for Mask {
    type Output = Mask;

    fn bitor(self, other: Mask) -> Mask {
        Mask(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }
}

impl Not for Mask {
    type Output = Mask;

    fn not(self) -> Mask {
        Mask(self.0.map(|word| !word))
    }
}

/// Settings of some switches: each is a number with a bit a switch, and a set of them is a mask.
pub struct Combinations {
    switches: &'static [&'static str],
    all: Mask,
}

impl Combinations {
    pub fn new(switches: &'static [&'static str], is_possible: impl Fn(usize) -> bool) -> Self {
        let count = 1 << switches.len();
        assert!(count <= NUMBERS, "a mask has {NUMBERS} bits");
        Self { switches, all: set((0..count).filter(|number| is_possible(*number))) }
    }

    pub fn numbers(&self) -> Vec<usize> {
        (0..NUMBERS).filter(|number| self.all.has(*number)).collect()
    }

    pub fn all(&self) -> Mask {
        self.all
    }

    /// A condition that holds for `wanted`, and for nothing else of `within`.
    pub fn expression(&self, wanted: Mask, within: Mask) -> String {
        let mut literals = Vec::new();
        for (bit, switch) in self.switches.iter().enumerate() {
            let on = set((0..NUMBERS).filter(|number| number & (1 << bit) != 0));
            literals.push(((*switch).to_owned(), on));
            literals.push((format!("(not {switch})"), !on));
        }
        let none = (String::new(), Mask::ALL);
        let pairs =
            || literals.iter().enumerate().flat_map(|(first, a)| literals[first + 1..].iter().map(move |b| (a, b)));
        let bare = |text: &str| text.strip_prefix('(').and_then(|it| it.strip_suffix(')')).unwrap_or(text).to_owned();
        let single = literals.iter().find(|it| it.1 & within == wanted).map(|it| bare(&it.0));
        let joined = || {
            pairs().find_map(|(a, b)| match () {
                () if a.1 & b.1 & within == wanted => Some(format!("and {} {}", a.0, b.0)),
                () if (a.1 | b.1) & within == wanted => Some(format!("or {} {}", a.0, b.0)),
                () => None,
            })
        };
        let of_three = || {
            pairs().find_map(|(a, b)| {
                literals.iter().chain([&none]).find_map(|c| match () {
                    () if a.1 & b.1 & c.1 & within == wanted => Some(format!("and {} {} {}", a.0, b.0, c.0)),
                    () if (a.1 & b.1 | c.1) & within == wanted => Some(format!("or (and {} {}) {}", a.0, b.0, c.0)),
                    () if (a.1 | b.1) & c.1 & within == wanted => Some(format!("and (or {} {}) {}", a.0, b.0, c.0)),
                    () => None,
                })
            })
        };
        single
            .or_else(joined)
            .or_else(of_three)
            .unwrap_or_else(|| panic!("no condition of three switches holds for {wanted:?} of {within:?}"))
    }
}

fn set(numbers: impl Iterator<Item = usize>) -> Mask {
    numbers.fold(!Mask::ALL, |mask, number| mask | Mask::of(number))
}

/// One sequence that holds all: taking the items with a number's bit gives back that number's sequence. The longest come
/// first, since they have the order of most items.
pub fn merge<T: PartialEq>(sequences: impl Iterator<Item = (usize, Vec<T>)>) -> Vec<(T, Mask)> {
    let mut sequences: Vec<_> = sequences.collect();
    sequences.sort_by_key(|(_, sequence)| std::cmp::Reverse(sequence.len()));
    sequences.into_iter().fold(Vec::new(), |merged, (number, sequence)| join(merged, sequence, Mask::of(number)))
}

/// Along a longest common subsequence.
fn join<T: PartialEq>(merged: Vec<(T, Mask)>, other: Vec<T>, mask: Mask) -> Vec<(T, Mask)> {
    let start = merged.iter().zip(&other).take_while(|(a, b)| a.0 == **b).count();
    let rest = merged.len().min(other.len()) - start;
    let end = merged.iter().rev().zip(other.iter().rev()).take(rest).take_while(|(a, b)| a.0 == **b).count();
    let (height, width) = (merged.len() - start - end, other.len() - start - end);
    let mut common = vec![vec![0u32; width + 1]; height + 1];
    for row in (0..height).rev() {
        for column in (0..width).rev() {
            common[row][column] = match merged[start + row].0 == other[start + column] {
                true => common[row + 1][column + 1] + 1,
                false => common[row + 1][column].max(common[row][column + 1]),
            };
        }
    }
    let mut all = Vec::new();
    let (mut left, mut right) = (merged.into_iter(), other.into_iter());
    for (item, of_it) in left.by_ref().take(start) {
        right.next();
        all.push((item, of_it | mask));
    }
    let (mut row, mut column) = (0, 0);
    while row < height || column < width {
        let is_left = row < height && (column == width || common[row + 1][column] == common[row][column]);
        if is_left {
            all.extend(left.next());
            row += 1;
        } else if column < width && common[row][column + 1] == common[row][column] {
            all.extend(right.next().map(|item| (item, mask)));
            column += 1;
        } else {
            right.next();
            all.extend(left.next().map(|(item, of_it)| (item, of_it | mask)));
            (row, column) = (row + 1, column + 1);
        }
    }
    all.extend(left.map(|(item, of_it)| (item, of_it | mask)));
    all
}

#[test]
fn what_is_merged_can_be_taken_apart_again() {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let texts = ["a b c d e", "a x c e", "c d", "a b e f g", ""];
    let merged = merge(texts.iter().enumerate().map(|(number, text)| (number, words(text))));
    for (number, text) in texts.iter().enumerate() {
        let own = merged.iter().filter(|(_, mask)| mask.has(number));
        assert_eq!(own.map(|(word, _)| word.as_str()).collect::<Vec<_>>().join(" "), *text);
    }
}
