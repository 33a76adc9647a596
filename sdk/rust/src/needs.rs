//! What a subject needs from Kubernetes before work starts: declared, never fetched.

/// One thing that is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// An address from a pool, by Cluster API's IPAM contract.
    Address {
        /// API group of the pool.
        group: String,
        /// Kind of the pool.
        kind: String,
        /// Name of the pool, in the subject's namespace.
        name: String,
    },
    /// An in-cluster pool that belongs to the subject.
    AddressPool {
        /// Addresses, ranges or CIDRs.
        addresses: Vec<String>,
        /// Length of the network prefix.
        prefix: u8,
        /// The default gateway.
        gateway: Option<String>,
    },
    /// A Secret named at this JSON pointer; its keys are `label/key`.
    Secret(String),
    /// A ConfigMap named at this JSON pointer.
    ConfigMap(String),
    /// A key pair of the cluster, kept as `<cluster>-<label>`; `label/tls.crt` and `label/tls.key`.
    KeyPair(KeyPair),
    /// A random token of the cluster, of this many characters.
    ClusterToken(u32),
    /// A kubeadm bootstrap token in the workload cluster.
    BootstrapToken,
}

/// A key pair that belongs to the cluster, made once or adopted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// How the key is made.
    pub algorithm: Algorithm,
    /// What the certificate may be used for.
    pub purpose: KeyUse,
    /// Subject of the certificate.
    pub common_name: String,
    /// How long the certificate is valid.
    pub validity_days: u32,
}

/// How a key is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Algorithm {
    #[default]
    Rsa2048,
    Rsa3072,
    Rsa4096,
    EcdsaP256,
    EcdsaP384,
}

/// What a key pair is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// It signs certificates.
    CertificateAuthority,
    /// It signs tokens only (the service-account key).
    SigningOnly,
}
