//! Helpers for calls of the blocking client.

use std::sync::Arc;
use std::time::Duration;

use towline_io::client::{
    BlockingCall, BlockingClient, BlockingConfig, BlockingError, CallError, CallOptions,
    DialConfig, OutgoingRequest, PoolLimits, Timeouts, WaitPolicy,
};
use towline_proto::{Limits, ProtocolPolicy};

pub fn client() -> BlockingClient {
    BlockingClient::new(BlockingConfig::default())
}

pub fn with_pool(pool: PoolLimits) -> BlockingClient {
    BlockingClient::new(BlockingConfig {
        pool,
        ..BlockingConfig::default()
    })
}

pub fn uninterrupted<T>(act: impl FnOnce(&mut WaitPolicy<'_>) -> T) -> T {
    act(&mut WaitPolicy::new(&mut || false, None))
}

pub fn begin_and_await_head(
    client: &BlockingClient,
    request: OutgoingRequest,
    options: CallOptions,
) -> Result<(u16, BlockingCall), BlockingError> {
    uninterrupted(|policy| {
        let mut call = client.begin(request, options, policy)?;
        let head = call.await_head(policy)?;
        Ok((head.view().status(), call))
    })
}

pub fn begin(
    client: &BlockingClient,
    request: OutgoingRequest,
    options: CallOptions,
) -> Result<BlockingCall, BlockingError> {
    begin_and_await_head(client, request, options).map(|(_, call)| call)
}

pub fn body_of(call: &mut BlockingCall) -> Result<Vec<u8>, BlockingError> {
    let mut body = Vec::new();
    uninterrupted(|policy| call.read_all(&mut body, policy)).map(|()| body)
}

pub fn exchange(
    client: &BlockingClient,
    request: OutgoingRequest,
) -> Result<(u16, Vec<u8>, bool), BlockingError> {
    let (status, mut call) = begin_and_await_head(client, request, CallOptions::default())?;
    let body = body_of(&mut call)?;
    Ok((status, body, call.is_reused()))
}

pub fn failed<T>(result: Result<T, BlockingError>) -> CallError {
    match result {
        Err(BlockingError::Failed(error)) => *error,
        Err(BlockingError::Interrupted) => panic!("interrupted"),
        Ok(_) => panic!("no error"),
    }
}

pub fn read_timeout(timeout: Duration) -> CallOptions {
    CallOptions {
        timeouts: Timeouts {
            read: Some(timeout),
            ..Timeouts::default()
        },
        ..CallOptions::default()
    }
}

/// Configuration for HTTP/2 with prior knowledge.
pub fn h2_config() -> BlockingConfig {
    BlockingConfig {
        dial: Arc::new(DialConfig::default().with_protocols(ProtocolPolicy::Http2)),
        ..BlockingConfig::default()
    }
}

pub fn h2_client() -> BlockingClient {
    BlockingClient::new(h2_config())
}

/// HTTP/2 client with a single connection.
pub fn h2_client_of_one_conn() -> BlockingClient {
    BlockingClient::new(BlockingConfig {
        pool: PoolLimits {
            max_connections: 1,
            ..PoolLimits::default()
        },
        ..h2_config()
    })
}

pub fn h2_client_with_limits(limits: Limits) -> BlockingClient {
    BlockingClient::new(BlockingConfig {
        limits: Arc::new(limits),
        ..h2_config()
    })
}

/// Makes a call and returns the status and the body.
pub fn fetch(client: &BlockingClient, request: OutgoingRequest) -> (u16, Vec<u8>) {
    let (status, body, _) = exchange(client, request).unwrap();
    (status, body)
}

pub fn assert_all_idle(client: &BlockingClient, idle: usize) {
    let status = client.status();
    let counts = (status.active, status.waiting, status.dialling, status.idle);
    assert_eq!(counts, (0, 0, 0, idle));
}
