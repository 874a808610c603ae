//! Header blocks that do not end, or that decode to too much.

use towline_proto::ErrorCode;
use towline_testkit::App;
use towline_testkit::h2::{self, END};

use super::{CALM, SECOND, assert_closes, server};

/// CVE-2024-27316.
#[test]
fn continuation_flood() {
    let floods: &[(&str, usize)] = &[("empty", 0), ("small", 5), ("full", 16_384)];
    for (name, size) in floods {
        let mut end = server(App::Read);
        let block = h2::block(&h2::pseudo("GET"));
        end.feed(&h2::frame(h2::HEADERS, END, 3, &block));
        let mut frames = 0;
        while !end.is_closed() {
            frames += 1;
            assert!(frames <= 9, "{name}");
            end.feed(&h2::frame(h2::CONTINUATION, 0, 3, &vec![0; *size]));
        }
        assert_eq!(h2::connection_error(end.written()), Some(CALM), "{name}");
        assert_eq!(end.log.text().matches("request ").count(), 1, "{name}");
    }
}

#[test]
fn an_endless_header_block_ends_with_the_header_timeout() {
    let mut end = server(App::Read);
    end.feed(&h2::frame(h2::HEADERS, END, 3, b""));
    for _ in 0..15 {
        assert!(!end.is_closed());
        end.advance(SECOND);
    }
    assert_eq!(h2::connection_error(end.written()), Some(CALM));
}

/// A field of 4 KB, repeated 12,000 times in a byte each: 48 MB of fields.
fn bomb(id: u32) -> Vec<u8> {
    let mut block = h2::block(&h2::pseudo("GET"));
    // With incremental indexing.
    block.extend_from_slice(b"\x40\x01x");
    h2::integer(&mut block, 0, 7, 4000);
    block.extend(std::iter::repeat_n(b'y', 4000));
    block.extend(std::iter::repeat_n(0xbe, 12_000));
    h2::frame(h2::HEADERS, END | h2::END_HEADERS, id, &block)
}

#[test]
fn hpack_bomb() {
    let mut end = server(App::Read);
    end.feed(&[bomb(3), h2::get(5)].concat());
    let log = end.log.text();
    assert!(!log.contains("request 3") && log.contains("request 5"));
    let lines = h2::lines(end.written());
    assert!(lines.contains(&"HEADERS 3 end".to_owned()), "{lines:?}");
    assert_closes(end, "bombs", |id| bomb(id + 4));
}

/// Split cookies are counted one by one, as they are stored.
#[test]
fn split_cookies_are_counted_one_by_one() {
    let crumbs = |n| {
        h2::headers(
            3,
            END,
            &[&h2::pseudo("GET")[..], &vec![("cookie", "a"); n]].concat(),
        )
    };
    for (count, is_served) in [(124, true), (125, false)] {
        let mut end = server(App::Read);
        end.feed(&crumbs(count));
        assert_eq!(end.log.text().contains("request 3"), is_served, "{count}");
        assert!(!end.is_closed());
    }
}

/// A block that cannot be decoded ends the connection: the tables may differ.
#[test]
fn undecodable_blocks_close_the_connection() {
    let buffers: &[(&str, &[u8])] = &[
        ("table larger than allowed", b"\x3f\xe2\x1f"),
        ("three table sizes", b"\x20\x20\x20"),
        ("table size behind a field", b"\x82\x20"),
        ("index 0", b"\x80"),
        ("index without an entry", b"\xbe"),
        ("integer without end", b"\xff\xff\xff\xff\xff\xff\xff"),
        ("cut", b"\x00\x05x"),
        ("huffman: eight bits of padding", b"\x00\x82\x1f\xff\x01y"),
        ("huffman: padding of zeros", b"\x00\x81\x18\x01y"),
        ("huffman: EOS", b"\x00\x84\xff\xff\xff\xff\x01y"),
    ];
    for (name, block) in buffers {
        let mut end = server(App::Read);
        end.feed(&h2::frame(h2::HEADERS, END | h2::END_HEADERS, 3, block));
        let code = h2::connection_error(end.written());
        assert_eq!(code, Some(ErrorCode::COMPRESSION_ERROR), "{name}");
    }
}

/// Our table stays bounded whatever the peer offers; blocks stay valid however often it changes.
#[test]
fn table_size_changes_keep_blocks_valid() {
    let mut end = server(App::Read);
    for id in (3..403).step_by(2) {
        let size = [0, u32::MAX, 1, 4096][id as usize / 2 % 4];
        let settings = h2::settings(&[(h2::HEADER_TABLE_SIZE, size), (h2::HEADER_TABLE_SIZE, 0)]);
        end.feed(&[settings, h2::get(id)].concat());
    }
    assert_eq!(end.log.text().matches("request ").count(), 201);
    let heads = h2::frames(end.written());
    assert!(heads.iter().all(|frame| frame.payload.len() < 100));
}
