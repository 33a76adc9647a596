//! The image of an instance: the one that the spec names, or the newest whose name fits the Kubernetes version.

use capstan_provider::{Context, Error, Result, xml::Element};

use crate::{SHARED, advice, cluster::AWSCluster, ec2, machine::AWSMachine};

/// The account that CAPA's images are published by.
const ORG: &str = "819546954734";
/// How CAPA's images are called.
const FORMAT: &str = "capa-ami-{{.BaseOS}}-?{{.K8sVersion}}-*";
/// The operating system where nothing names one.
const BASE_OS: &str = "ubuntu-24.04";

/// An image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Its id.
    pub id: String,
    /// The device that it boots from.
    pub root_device: String,
}

impl Image {
    fn of(element: &Element) -> Self {
        Self { id: element.text("imageId").to_owned(), root_device: element.text("rootDeviceName").to_owned() }
    }
}

/// Chooses.
pub fn choose(ctx: &Context<AWSMachine>, cluster: &AWSCluster) -> Result<Image> {
    if let Some(id) = ctx.spec.ami.id.as_deref().filter(|id| !id.is_empty()) {
        if ctx.spec.root_volume.is_none() {
            return Ok(Image { id: id.to_owned(), root_device: String::new() });
        }
        let answer = ec2("DescribeImages").set("ImageId.1", id).max_age(SHARED).send()?;
        let answer = answer.map_err(|fault| advice::refusal(&fault, &[("InvalidAMIID", "/spec/ami/id")]))?;
        let image = answer.all("imagesSet/item").next().map(Image::of);
        return image.ok_or_else(|| Error::invalid("/spec/ami/id", format!("there is no image {id} in the region")));
    }
    let name = pattern(ctx, cluster)?;
    let (own, shared) = (ctx.spec.lookup(), cluster.lookup());
    let org = own.org.or(shared.org).unwrap_or_else(|| ORG.to_owned());
    let architecture = architecture(&ctx.spec.instance_type)?;
    let filters = [
        ("name", name.as_str()),
        ("architecture", architecture.as_str()),
        ("state", "available"),
        ("virtualization-type", "hvm"),
    ];
    let answer = ec2("DescribeImages").set("Owner.1", &org).filters(&filters).max_age(SHARED).ok()?;
    let newest = answer.all("imagesSet/item").max_by_key(|image| image.text("creationDate").to_owned());
    newest.map(Image::of).ok_or_else(|| {
        let message = format!("account {org} has no image for {architecture} whose name fits {name:?}: set ami.id");
        Error::invalid("/spec/ami", message)
    })
}

/// The pattern of the image's name.
fn pattern(ctx: &Context<AWSMachine>, cluster: &AWSCluster) -> Result<String> {
    let (own, shared) = (ctx.spec.lookup(), cluster.lookup());
    let format = own.format.or(shared.format).unwrap_or_else(|| FORMAT.to_owned());
    let base = own.base_os.or(shared.base_os).unwrap_or_else(|| BASE_OS.to_owned());
    let version = ctx.machine().and_then(|machine| machine.kubernetes_version()).ok_or_else(|| {
        Error::invalid("/spec/ami", "an image is looked up by the Machine's version, which it has not: set ami.id")
    })?;
    let version = version.trim_start_matches('v');
    let mut filled = format;
    for (name, value) in [("BaseOS", base.as_str()), ("K8sVersion", version)] {
        for form in [format!("{{{{.{name}}}}}"), format!("{{{{ .{name} }}}}")] {
            filled = filled.replace(&form, value);
        }
    }
    if filled.contains("{{") {
        let message = format!("{filled:?} asks for more than BaseOS and K8sVersion");
        return Err(Error::invalid("/spec/imageLookupFormat", message));
    }
    Ok(filled)
}

/// The architecture of a type.
fn architecture(instance_type: &str) -> Result<String> {
    let answer = ec2("DescribeInstanceTypes").set("InstanceType.1", instance_type).max_age(SHARED).send()?;
    let answer = answer.map_err(|fault| advice::refusal(&fault, &[("InvalidInstanceType", "/spec/instanceType")]))?;
    let mut found: Vec<&str> = answer
        .all("instanceTypeSet/item/processorInfo/supportedArchitectures/item")
        .map(|architecture| architecture.text.as_str())
        .collect();
    found.retain(|architecture| matches!(*architecture, "x86_64" | "arm64"));
    match found.first() {
        Some(first) => Ok((*first).to_owned()),
        None => Err(Error::invalid(
            "/spec/instanceType",
            format!("there is no instance type {instance_type} in the region"),
        )),
    }
}
