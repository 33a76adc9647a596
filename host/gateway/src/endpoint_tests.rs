use super::*;
use bytes::Bytes;
use capstan_api::Object;
use serde_json::json;

type Entries = Vec<(&'static str, &'static str)>;

/// Endpoints by namespace and name, a module default, Secrets, granted reads.
#[derive(Default)]
struct Table {
    endpoints: Vec<(&'static str, &'static str, Destination)>,
    default: Option<Destination>,
    secrets: Vec<(&'static str, &'static str, Entries)>,
    granted: Vec<(String, ReadOperation)>,
    objects: Vec<Value>,
}

impl Endpoints for Table {
    fn endpoint(&self, namespace: &str, name: &str) -> Result<Option<Destination>, String> {
        let found = self.endpoints.iter().find(|(ns, n, _)| (*ns, *n) == (namespace, name));
        Ok(found.map(|(_, _, destination)| destination.clone()))
    }
    fn module_default(&self, _: &str, _: &str) -> Result<Option<Destination>, String> {
        Ok(self.default.clone())
    }
    fn secret(&self, namespace: &str, name: &str) -> Result<Option<SecretData>, String> {
        let found = self.secrets.iter().find(|(ns, n, _)| (*ns, *n) == (namespace, name));
        let entry = |(key, value): &(&str, &str)| ((*key).to_owned(), Bytes::copy_from_slice(value.as_bytes()));
        Ok(found.map(|(_, _, entries)| entries.iter().map(entry).collect()))
    }
    fn object(&self, key: &ObjectKey) -> Result<Option<Arc<Object>>, String> {
        let all = self.objects.iter().filter_map(|object| Object::from_value(object.clone()));
        Ok(all.into_iter().find(|object| object.key() == *key).map(Arc::new))
    }
    fn granted_reads(&self, _: &str) -> Vec<(String, ReadOperation)> {
        self.granted.clone()
    }
}

fn at(text: &str) -> Destination {
    Destination::of(Origin::parse(text).unwrap())
}

fn input(subject: Value, infrastructure: Option<Value>) -> TurnInput {
    let mut input = TurnInput { subject: Object::from_value(subject).unwrap(), ..TurnInput::default() };
    input.cluster.infrastructure_spec = infrastructure;
    input
}

fn subject(spec: Value) -> Value {
    json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "o", "namespace": "a"}, "spec": spec})
}

fn proxmox() -> Declared {
    let reference = json!({"at": "/spec/credentialsRef", "kind": "Secret", "endpoint": "api", "origin": "url",
                           "header": {"Authorization": "PVEAPIToken={token}={secret}"}});
    Declared { credentials: vec![serde_json::from_value(reference).unwrap()], ..Declared::named("api") }
}

fn find(table: &Table, declared: &Declared, input: Option<&TurnInput>) -> Result<EndpointConfig, String> {
    resolve(table, &Asker { module: "m", namespace: "a", declared: std::slice::from_ref(declared), input }, declared)
}

fn authorization(config: &EndpointConfig) -> Option<String> {
    let Credential::Headers { headers, .. } = &config.credential else { return None };
    Some(headers[0].1.to_str().unwrap().to_owned())
}

#[test]
fn the_object_s_choice_wins_then_its_namespace_then_the_default() {
    let table = Table {
        endpoints: vec![("a", "api", at("http://a.api")), ("a", "other", at("http://a.other"))],
        default: Some(at("http://default")),
        ..Table::default()
    };
    let reference =
        CredentialReference { at: "/spec/identityRef".into(), kind: "Endpoint".into(), ..Default::default() };
    let declared = Declared { credentials: vec![reference], ..Declared::named("api") };
    let origin = |table: &Table, spec: Value| {
        find(table, &declared, Some(&input(subject(spec), None))).map(|config| config.origin.to_string())
    };
    let chosen = |name: &str| json!({"identityRef": {"kind": "Endpoint", "name": name}});
    assert_eq!(origin(&table, chosen("other")).unwrap(), "http://a.other");
    assert_eq!(origin(&table, json!({})).unwrap(), "http://a.api");
    let missing = origin(&table, chosen("gone")).unwrap_err();
    assert!(missing.contains("a/gone"), "{missing}");
    let table = Table { default: Some(at("http://default")), ..Table::default() };
    assert_eq!(origin(&table, json!({})).unwrap(), "http://default");
    let nothing = origin(&Table::default(), json!({})).unwrap_err();
    assert!(nothing.contains("api") && nothing.contains("namespace a"), "{nothing}");
}

fn lent() -> (Declared, Declared, Table) {
    let credentials: Vec<CredentialReference> = serde_json::from_value(json!([
        {"at": "/spec/identityRef", "kind": "StaticIdentity", "aws": true, "secret": "/spec/secretRef",
         "allowedNamespaces": "/spec/allowedNamespaces"},
        {"at": "/spec/identityRef", "kind": "RoleIdentity", "source": "/spec/source",
         "role": {"arn": "/spec/roleARN", "sessionName": "/spec/sessionName", "inlinePolicy": "/spec/policy",
                  "endpoint": "sts"},
         "allowedNamespaces": "/spec/allowedNamespaces"}]))
    .unwrap();
    let of = |service: &str| Declared {
        url: Some(format!("https://{service}.{{region}}.amazonaws.com")),
        variables: BTreeMap::from([("region".into(), "/spec/region".into())]),
        signing: Some(Signing { service: service.into(), region: "{region}".into() }),
        credentials: credentials.clone(),
        ..Declared::named(service)
    };
    let identity =
        |kind: &str, spec: Value| json!({"apiVersion": "g/v1", "kind": kind, "metadata": {"name": "i"}, "spec": spec});
    let table = Table {
        secrets: vec![("capstan-system", "keys", vec![("AccessKeyID", "AKIA"), ("SecretAccessKey", "s")])],
        objects: vec![
            identity("StaticIdentity", json!({"secretRef": "keys", "allowedNamespaces": {}})),
            identity(
                "RoleIdentity",
                json!({"roleARN": "arn:r", "sessionName": "me", "policy": "{}",
                "source": {"kind": "StaticIdentity", "name": "i"}, "allowedNamespaces": {"list": ["a"]}}),
            ),
        ],
        ..Table::default()
    };
    (of("ec2"), of("sts"), table)
}

#[test]
fn an_identity_signs_for_a_machine_in_the_region_of_its_cluster() {
    let (ec2, sts, mut table) = lent();
    let declared = [ec2, sts];
    let named = |kind: &str| json!({"region": "eu-west-1", "identityRef": {"kind": kind, "name": "i"}});
    let machine = |kind: &str| input(subject(json!({})), Some(named(kind)));
    let find = |table: &Table, input: &TurnInput| {
        resolve(table, &Asker { module: "m", namespace: "a", declared: &declared, input: Some(input) }, &declared[0])
    };
    let config = find(&table, &machine("StaticIdentity")).unwrap();
    assert_eq!(config.origin.to_string(), "https://ec2.eu-west-1.amazonaws.com");
    let Credential::Aws { scope, roles, .. } = config.credential else { panic!() };
    assert_eq!((scope.region.as_str(), scope.service.as_str(), roles.len()), ("eu-west-1", "ec2", 0));
    let config = find(&table, &machine("RoleIdentity")).unwrap();
    let Credential::Aws { roles, .. } = config.credential else { panic!() };
    let [role] = roles.as_slice() else { panic!("{roles:?}") };
    assert_eq!((role.arn.as_str(), role.session_name.as_str(), role.seconds), ("arn:r", "me", 3600));
    assert_eq!(role.sts.as_ref().unwrap().to_string(), "https://sts.eu-west-1.amazonaws.com");
    assert_eq!(role.policy.as_deref(), Some("{}"));
    // The operator's default takes both to where it says.
    table.default = Some(at("http://moto"));
    let config = find(&table, &machine("RoleIdentity")).unwrap();
    let Credential::Aws { roles, .. } = config.credential else { panic!() };
    assert_eq!(
        (config.origin.to_string().as_str(), roles[0].sts.as_ref().unwrap().to_string().as_str()),
        ("http://moto", "http://moto")
    );
    // A tenant's Endpoint does not: what is lent would go to whomever it names.
    for name in ["ec2", "sts"] {
        table.endpoints = vec![("a", name, at("http://mine"))];
        let why = find(&table, &machine("RoleIdentity")).unwrap_err();
        assert!(why.contains("http://mine") && why.contains(&format!("endpoints.{name}")), "{why}");
    }
    // Its own credential may go there.
    let kind = CredentialKind::Aws { region: None, roles: vec![] };
    table.secrets.push(("a", "own", vec![("AccessKeyID", "AKIB"), ("SecretAccessKey", "s")]));
    let credential = Some(CredentialSource { secret: ("a".into(), "own".into()), kind });
    table.endpoints = vec![("a", "ec2", Destination { credential, ..at("http://mine") })];
    assert_eq!(find(&table, &machine("RoleIdentity")).unwrap().origin.to_string(), "http://mine");
}

#[test]
fn origins_that_would_surprise_are_refused() {
    for bad in ["ftp://h", "h:80", "https://u:p@h", "http://h/?a=b", "unix://relative", "https://"] {
        assert!(Origin::parse(bad).is_err(), "{bad}");
    }
    assert_eq!(Origin::parse("https://h:8006/").unwrap().to_string(), "https://h:8006");
    assert_eq!(Origin::parse("unix:///run/x.sock").unwrap(), Origin::UnixSocket("/run/x.sock".into()));
}

#[test]
fn a_secret_that_the_object_or_its_cluster_names_is_origin_and_credential() {
    let mut table = Table {
        secrets: vec![("a", "pve", vec![("url", "https://pve:8006"), ("token", "u@pve!t"), ("secret", "x-y")])],
        ..Table::default()
    };
    let own = input(subject(json!({"credentialsRef": {"name": "pve"}})), None);
    let machine = input(subject(json!({})), Some(json!({"credentialsRef": {"name": "pve", "namespace": "a"}})));
    for input in [&own, &machine] {
        let config = find(&table, &proxmox(), Some(input)).unwrap();
        assert_eq!(config.origin.to_string(), "https://pve:8006");
        assert_eq!(authorization(&config).unwrap(), "PVEAPIToken=u@pve!t=x-y");
    }
    // An Endpoint says where; the credential is still the object's.
    table.endpoints = vec![("a", "api", at("https://proxy"))];
    let config = find(&table, &proxmox(), Some(&own)).unwrap();
    assert_eq!((config.origin.to_string().as_str(), authorization(&config).is_some()), ("https://proxy", true));
    // An Endpoint with a credential of its own.
    let kind = CredentialKind::Bearer { key: "token".into() };
    table.endpoints[0].2.credential = Some(CredentialSource { secret: ("a".into(), "pve".into()), kind });
    assert_eq!(authorization(&find(&table, &proxmox(), Some(&own)).unwrap()).unwrap(), "Bearer u@pve!t");
}

#[test]
fn what_is_wrong_with_a_named_secret_is_told() {
    let table = Table {
        secrets: vec![
            ("b", "pve", vec![("url", "https://pve:8006"), ("token", "t"), ("secret", "hunter2")]),
            ("a", "half", vec![("url", "https://pve:8006"), ("token", "t")]),
            ("a", "odd", vec![("url", "unix:///run/docker.sock"), ("token", "t"), ("secret", "hunter2")]),
        ],
        ..Table::default()
    };
    let told = |reference: Value| {
        find(&table, &proxmox(), Some(&input(subject(json!({"credentialsRef": reference})), None))).unwrap_err()
    };
    assert!(told(json!({"name": "pve", "namespace": "b"})).contains("own namespace a"));
    assert!(told(json!({"name": "gone"})).contains("no Secret a/gone"));
    assert!(told(json!({"name": "half"})).contains("a/half has no key secret"));
    assert!(told(json!({"name": "odd"})).contains("only an Endpoint may"));
    assert!(told(json!({})).contains("names no Secret"));
    let nothing = find(&table, &proxmox(), Some(&input(subject(json!({})), None))).unwrap_err();
    assert!(nothing.contains("/spec/credentialsRef"), "{nothing}");
}

#[test]
fn a_template_takes_its_variables_from_the_infrastructure_cluster() {
    let declared = Declared {
        url: Some("https://ec2.{region}.amazonaws.com".into()),
        variables: BTreeMap::from([("region".into(), "/spec/region".into())]),
        signing: Some(Signing { service: "ec2".into(), region: "{region}".into() }),
        ..Declared::named("api")
    };
    let open = Declared { signing: None, ..declared.clone() };
    let origin = |spec: Value| {
        let input = input(subject(json!({"region": "ignored"})), Some(spec));
        find(&Table::default(), &open, Some(&input)).map(|config| config.origin.to_string())
    };
    assert_eq!(origin(json!({"region": "eu-west-1"})).unwrap(), "https://ec2.eu-west-1.amazonaws.com");
    for bad in ["evil.example/", "a.b", "UP", "", "a@b", "169.254.169.254#"] {
        assert!(origin(json!({"region": bad})).unwrap_err().contains("/spec/region"), "{bad}");
    }
    let cluster = input(subject(json!({"region": "eu-north-1"})), None);
    let config = find(&Table::default(), &open, Some(&cluster)).unwrap();
    assert_eq!(config.origin.to_string(), "https://ec2.eu-north-1.amazonaws.com", "the subject is the cluster");
    // What has to be signed is not sent without a signature.
    let reference = |kind: &str, ambient: bool| CredentialReference {
        at: "/spec/identityRef".into(),
        kind: kind.into(),
        ambient,
        ..Default::default()
    };
    let credentials = vec![reference("Endpoint", false), reference("ControllerIdentity", true)];
    let unsigned = find(&Table::default(), &Declared { credentials, ..declared.clone() }, Some(&cluster)).unwrap_err();
    assert!(unsigned.contains("create an Endpoint api with a credential in namespace a"), "{unsigned}");
    assert!(unsigned.ends_with("or name one of Endpoint at /spec/identityRef"), "{unsigned}");
    // A tenant supplies a credential only; service and region are the manifest's.
    let credential = CredentialSource {
        secret: ("a".into(), "aws".into()),
        kind: CredentialKind::Aws { region: None, roles: vec![] },
    };
    let table = Table {
        endpoints: vec![("a", "api", Destination { credential: Some(credential), ..Destination::default() })],
        secrets: vec![("a", "aws", vec![("AccessKeyID", "AKIA"), ("SecretAccessKey", "s")])],
        ..Table::default()
    };
    let config = find(&table, &declared, Some(&cluster)).unwrap();
    let Credential::Aws { scope, .. } = config.credential else { panic!() };
    assert_eq!((scope.service.as_str(), scope.region.as_str()), ("ec2", "eu-north-1"));
}

#[test]
fn limits_only_narrow_and_reads_need_a_grant() {
    let read = ReadOperation { method: "POST".into(), path: "/search".into() };
    let declared = Declared { read_operations: vec![read.clone()], ..Declared::named("api") };
    let mut table = Table::default();
    let narrow = Destination { timeout: Some(Duration::from_secs(5)), max_response: Some(1 << 40), ..at("http://x") };
    table.default = Some(narrow);
    let config = find(&table, &declared, None).unwrap();
    assert_eq!((config.timeout, config.max_response), (Duration::from_secs(5), 4 << 20));
    assert!(config.read_operations.is_empty(), "not granted");
    table.granted = vec![("other".into(), read.clone())];
    assert!(find(&table, &declared, None).unwrap().read_operations.is_empty());
    table.granted = vec![("api".into(), read.clone())];
    assert_eq!(find(&table, &declared, None).unwrap().read_operations, [read]);
}
