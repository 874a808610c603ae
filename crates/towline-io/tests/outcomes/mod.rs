//! Every failure that all client paths can have gives the same error on each of them: asynchronous and blocking,
//! HTTP/1 and HTTP/2. The scripts are servers over real sockets.

mod case;
mod connecting;
mod exchanges;
mod expectations;
mod pool;
