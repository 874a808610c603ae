//! Allocations of a call on a connection that has been used before.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use support::Server;
use support::calls::{get, route};
use towline_io::client::{CallEvent, CallOptions, CallRead, ClientDriver, ClientDriverConfig};

/// Allocator that counts the allocations of the test's thread.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: delegates everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Text and spans of the request, their shared owner (the caller keeps them for its record of what was sent), text
/// and spans of the response's head.
const UNAVOIDABLE: usize = 5;

#[test]
fn a_call_on_a_used_connection_allocates_only_its_heads() {
    let server = Server::plain();
    let route = route(server.addr);
    let mut driver = ClientDriver::new(ClientDriverConfig::default()).unwrap();
    let mut exchange = || {
        let before = COUNT.get();
        let call = driver
            .begin(get(&route, "/"), CallOptions::default())
            .unwrap();
        let mut body = 0;
        loop {
            driver.turn(Some(Duration::from_secs(1))).unwrap();
            while let Some((_, event)) = driver.next_event() {
                let CallEvent::Head { .. } = event else {
                    panic!("{event:?}");
                };
                drop(driver.take_head(call));
                while let CallRead::Data(data) = driver.read(call, usize::MAX) {
                    body += data.len();
                }
                driver.cancel(call);
            }
            if driver.calls() == 0 {
                break;
            }
        }
        assert_eq!(body, 7);
        COUNT.get() - before
    };
    for _ in 0..10 {
        exchange();
    }
    for _ in 0..100 {
        assert_eq!(exchange(), UNAVOIDABLE);
    }
}
