//! Header blocks of one connection: no panic, bounded, the same tables whatever is delivered, and decoded fields
//! are the same after encoding and decoding them again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towline_proto::Field;
use towline_proto::bench::{HpackError, HpackScratch};

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

const WIDE: u32 = 1 << 24;

fn decode(scratch: &mut HpackScratch, block: &[u8]) -> Result<Pairs, HpackError> {
    let (fields, _) = scratch.decode(block)?;
    Ok(fields
        .map(|field| (field.name.to_vec(), field.value.to_vec()))
        .collect())
}

fn check_copy(sender: &mut HpackScratch, receiver: &mut HpackScratch, pairs: &Pairs) {
    let fields: Vec<_> = pairs
        .iter()
        .map(|(name, value)| Field { name, value })
        .collect();
    let block = sender.encode(&fields);
    assert_eq!(decode(receiver, block).as_ref(), Ok(pairs));
}

// The first byte chooses the narrow bounds and the encoder's table; each block follows its length.
fuzz_target!(|data: &[u8]| {
    let [choice, rest @ ..] = data else { return };
    let mut rest = rest;
    let (max_bytes, max_fields) = (u32::from(*choice) * 8, u32::from(choice & 15));
    let mut wide = HpackScratch::new(WIDE, WIDE);
    let mut narrow = HpackScratch::new(max_bytes, max_fields);
    let mut copy = [HpackScratch::new(WIDE, WIDE), HpackScratch::new(WIDE, WIDE)];
    copy[0].set_encoder_table_bytes(u32::from(*choice) * 16);
    while let [len, behind @ ..] = rest {
        let (block, next) = behind.split_at(behind.len().min(usize::from(*len)));
        rest = next;
        let all = decode(&mut wide, block);
        let some = decode(&mut narrow, block);
        let (all, some) = match (all, some) {
            (Ok(all), Ok(some)) => (all, some),
            (all, some) => return assert_eq!(all.err(), some.err()),
        };
        assert!(all.starts_with(&some));
        let bytes: usize = some
            .iter()
            .map(|(name, value)| name.len() + value.len() + 32)
            .sum();
        assert!(bytes <= max_bytes as usize && some.len() <= max_fields as usize);
        let [sender, receiver] = &mut copy;
        check_copy(sender, receiver, &all);
    }
});
