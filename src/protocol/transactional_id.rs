//! The Kafka transactional.id of a lease: `fencepost:{installation}:{lease}`.
//!
//! Owns the mapping both ways. It is injective, because neither an installation nor a lease name
//! can hold a colon; nothing is cut or hashed, so an ACL can name a tenant by its prefix.

use crate::protocol::lease::{INSTALLATION_MAX, LeaseName, NameError, text_newtype};
use std::fmt;
use std::sync::Arc;

text_newtype!(
    /// Which deployment this is, its environment included.
    Installation
);
text_newtype!(
    /// A transactional.id as Kafka sees it.
    TransactionalId
);

impl Installation {
    /// Checks and takes an installation name.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        if !text.is_empty() && text.len() <= INSTALLATION_MAX && text.bytes().all(allowed) {
            Ok(Self(text.into()))
        } else {
            Err(NameError::Installation)
        }
    }
}

impl TransactionalId {
    /// The one id of a lease in an installation.
    #[must_use]
    pub fn of(installation: &Installation, lease: &LeaseName) -> Self {
        Self(format!("fencepost:{installation}:{lease}").into())
    }

    /// The installation and the lease that an id belongs to, if it is one of ours.
    #[must_use]
    pub fn decode(&self) -> Option<(Installation, LeaseName)> {
        let (installation, lease) = self.0.strip_prefix("fencepost:")?.split_once(':')?;
        Some((Installation::parse(installation).ok()?, LeaseName::parse(lease).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_transactional_id_leads_back_to_its_one_lease(
            installation in "[A-Za-z0-9-]{1,40}", lease in "[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}",
        ) {
            let installation = Installation::parse(&installation).unwrap();
            let lease = LeaseName::parse(&lease).unwrap();
            let id = TransactionalId::of(&installation, &lease);
            prop_assert_eq!(id.decode(), Some((installation, lease)));
        }
    }

    #[test]
    fn one_tenants_prefix_matches_no_other_tenant() {
        let installation = Installation::parse("prod").unwrap();
        let id = |name| TransactionalId::of(&installation, &LeaseName::parse(name).unwrap());
        assert!(id("a.x").as_str().starts_with("fencepost:prod:a."));
        assert!(!id("ab.x").as_str().starts_with("fencepost:prod:a."));
        assert!(!id("a-b").as_str().starts_with("fencepost:prod:a."));
    }
}
