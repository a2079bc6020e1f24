//! In place of QUIC in a program that is built without it: there is no node to listen as, so nothing
//! of it is ever called.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::base::error::SystemError;
use crate::base::limits::Limits;
use crate::net::link::Dial;
use crate::net::link::owner::LinkOwner;

/// An address and an identity, which nobody can give.
#[derive(Debug)]
pub(crate) enum Listen {}

impl Listen {
    pub(crate) fn node(&self) -> &str {
        match *self {}
    }

    pub(crate) fn bind(self, _: &Limits) -> Result<Arc<Quic>, SystemError> {
        match self {}
    }
}

/// A socket, which nobody has bound.
#[derive(Debug)]
pub(crate) enum Quic {}

impl Quic {
    pub(crate) fn serve(self: &Arc<Self>, _: &Arc<dyn LinkOwner>) {
        match **self {}
    }

    pub(crate) fn redial(self: &Arc<Self>, _: SocketAddr) -> Arc<dyn Dial> {
        match **self {}
    }

    pub(crate) async fn close(&self) {
        match *self {}
    }
}
