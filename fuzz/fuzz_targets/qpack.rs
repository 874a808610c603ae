//! Field sections and instructions of QPACK: no panic, the same in pieces, and decoded fields are the same after encoding
//! and decoding them again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towline_proto::Field;
use towline_proto::bench::QpackScratch;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

const TABLE_BYTES: u32 = 4096;
const WIDE: u32 = 1 << 24;

fn codec() -> QpackScratch {
    QpackScratch::new(TABLE_BYTES, WIDE, WIDE)
}

fn decode(codec: &mut QpackScratch, stream: u64, section: &[u8]) -> Option<Pairs> {
    let (fields, _) = codec.decode(stream, section).ok()??;
    let pair = |field: Field<'_>| (field.name.to_vec(), field.value.to_vec());
    Some(fields.map(pair).collect())
}

/// One end encodes, the other decodes, and acknowledges if `acknowledges`.
fn check_copy(ends: &mut [QpackScratch; 2], stream: u64, pairs: &Pairs, acknowledges: bool) {
    let [sender, receiver] = ends;
    let fields: Vec<_> = pairs
        .iter()
        .map(|(name, value)| Field { name, value })
        .collect();
    let section = sender.encode(stream, &fields).to_vec();
    let instructions = sender.take_instructions();
    receiver.receive_instructions(&instructions).expect("ours");
    assert_eq!(decode(receiver, stream, &section).as_ref(), Some(pairs));
    if acknowledges {
        let acknowledgements = receiver.take_acknowledgements();
        sender
            .receive_acknowledgements(&acknowledgements)
            .expect("ours");
    }
}

// Each item: what it is, its length, its bytes.
fuzz_target!(|data: &[u8]| {
    let mut whole = codec();
    let mut pieces = codec();
    let mut peer = codec();
    peer.set_encoder_limits(u64::from(TABLE_BYTES), 1);
    let mut ends = [codec(), codec()];
    ends[0].set_encoder_limits(u64::from(TABLE_BYTES), 1);
    let mut rest = data;
    let mut stream = 0;
    while let [what, len, behind @ ..] = rest {
        let (bytes, next) = behind.split_at(behind.len().min(usize::from(*len)));
        rest = next;
        match what % 3 {
            0 => {
                let at_once = whole.receive_instructions(bytes);
                let mut slowly = Ok(());
                for byte in bytes {
                    slowly = slowly.and_then(|()| pieces.receive_instructions(&[*byte]));
                }
                assert_eq!(at_once, slowly);
                if at_once.is_err() {
                    return;
                }
                assert_eq!(
                    whole.take_acknowledgements(),
                    pieces.take_acknowledgements()
                );
            }
            1 => {
                let found = decode(&mut whole, stream, bytes);
                assert_eq!(found, decode(&mut pieces, stream, bytes));
                let Some(pairs) = found else { continue };
                check_copy(&mut ends, stream, &pairs, what & 4 == 0);
                stream += 4;
            }
            _ => {
                if peer.receive_acknowledgements(bytes).is_err() {
                    peer = codec();
                    peer.set_encoder_limits(u64::from(TABLE_BYTES), 1);
                }
                let field = Field {
                    name: b"x-name",
                    value: bytes,
                };
                peer.encode(stream, &[field]);
            }
        }
    }
});
