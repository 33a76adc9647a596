//! The request that launches an instance.

use capstan_provider::{Context, Result, aws::Query};

use crate::{
    bootstrap, ec2,
    instance::Frozen,
    machine::{AWSMachine, Volume},
    placement,
};

/// Fields that codes of EC2 blame.
pub const FIELDS: &[(&str, &str)] = &[
    ("InvalidAMIID", "/spec/ami/id"),
    ("InvalidInstanceType", "/spec/instanceType"),
    ("InvalidKeyPair", "/spec/sshKeyName"),
    ("InvalidSubnetID", "/spec/subnet"),
    ("InvalidSubnet", "/spec/subnet"),
    ("InvalidGroup", "/spec/additionalSecurityGroups"),
    ("InvalidSecurityGroup", "/spec/additionalSecurityGroups"),
    ("InvalidBlockDeviceMapping", "/spec/rootVolume"),
    ("InvalidParameterCombination", "/spec"),
    ("InvalidIamInstanceProfile", "/spec/iamInstanceProfile"),
    ("InvalidPlacementGroup", "/spec/placementGroupName"),
    ("InvalidCapacityReservationId", "/spec/capacityReservationId"),
    ("SpotMaxPriceTooLow", "/spec/spotMarketOptions/maxPrice"),
    ("InvalidTagKey", "/spec/additionalTags"),
];

/// Everything but token and tags.
pub fn query(ctx: &Context<AWSMachine>, frozen: &Frozen) -> Result<Query> {
    let spec = &ctx.spec;
    let cluster = placement::cluster(ctx)?;
    let interface = "NetworkInterface.1";
    let mut query = ec2("RunInstances")
        .set("MinCount", "1")
        .set("MaxCount", "1")
        .set("ImageId", &frozen.image)
        .set("InstanceType", &spec.instance_type)
        .set(&format!("{interface}.DeviceIndex"), "0")
        .set(&format!("{interface}.SubnetId"), &frozen.subnet)
        .set_some(&format!("{interface}.AssociatePublicIpAddress"), spec.public_ip.map(|public| public.to_string()))
        .set_some(&format!("{interface}.InterfaceType"), spec.network_interface_type.as_ref())
        .list(&format!("{interface}.SecurityGroupId."), &frozen.groups);
    let key = spec.ssh_key_name.as_ref().or(cluster.ssh_key_name.as_ref()).filter(|key| !key.is_empty());
    query = query.set_some("KeyName", key);
    let profile = spec.iam_instance_profile.as_ref().filter(|profile| !profile.is_empty());
    query = query.set_some("IamInstanceProfile.Name", profile);
    let metadata = spec.instance_metadata_options.clone().unwrap_or_default();
    let or = |given: Option<String>, usual: &str| given.unwrap_or_else(|| usual.to_owned());
    query = query
        .set("MetadataOptions.HttpEndpoint", or(metadata.http_endpoint, "enabled"))
        .set("MetadataOptions.HttpPutResponseHopLimit", metadata.http_put_response_hop_limit.unwrap_or(1).to_string())
        .set("MetadataOptions.HttpTokens", or(metadata.http_tokens, "optional"))
        .set_some("MetadataOptions.HttpProtocolIpv6", metadata.http_protocol_ipv6)
        .set("MetadataOptions.InstanceMetadataTags", or(metadata.instance_metadata_tags, "disabled"));
    if spec.is_spot() {
        let price = spec.spot_market_options.as_ref().and_then(|spot| spot.max_price.clone());
        query = query
            .set("InstanceMarketOptions.MarketType", "spot")
            .set("InstanceMarketOptions.SpotOptions.SpotInstanceType", "one-time")
            .set("InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior", "terminate")
            .set_some("InstanceMarketOptions.SpotOptions.MaxPrice", price.filter(|price| !price.is_empty()));
    } else if spec.market_type.as_deref() == Some("CapacityBlock") {
        query = query.set("InstanceMarketOptions.MarketType", "capacity-block");
    }
    let reservation = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId";
    query = query.set_some(reservation, spec.capacity_reservation_id.as_ref());
    let preference = spec.capacity_reservation_preference.as_deref().and_then(|preference| match preference {
        "Open" => Some("open"),
        "None" => Some("none"),
        "CapacityReservationsOnly" => Some("capacity-reservations-only"),
        _ => None,
    });
    query = query.set_some("CapacityReservationSpecification.CapacityReservationPreference", preference);
    query = query
        .set_some("Placement.GroupName", spec.placement_group_name.as_ref().filter(|name| !name.is_empty()))
        .set_some("Placement.PartitionNumber", spec.placement_group_partition.filter(|n| *n > 0).map(|n| n.to_string()))
        .set_some("Placement.Tenancy", spec.tenancy.as_ref().filter(|tenancy| !tenancy.is_empty()));
    if let Some(name) = &spec.private_dns_name {
        let record = |given: Option<bool>| given.map(|given| given.to_string());
        query = query
            .set_some("PrivateDnsNameOptions.HostnameType", name.hostname_type.as_ref())
            .set_some(
                "PrivateDnsNameOptions.EnableResourceNameDnsARecord",
                record(name.enable_resource_name_dns_a_record),
            )
            .set_some(
                "PrivateDnsNameOptions.EnableResourceNameDnsAAAARecord",
                record(name.enable_resource_name_dns_aaaa_record),
            );
    }
    let root =
        spec.root_volume.iter().map(|volume| (volume.device_name.as_deref().unwrap_or(&frozen.root_device), volume));
    let further = spec.non_root_volumes.iter();
    let further = further.map(|volume| (volume.device_name.as_deref().unwrap_or_default(), volume));
    for (index, (device, volume)) in root.chain(further).enumerate() {
        query = mapping(query, &format!("BlockDeviceMapping.{}", index + 1), device, volume);
    }
    Ok(query.set_secret("UserData", &bootstrap::user_data(ctx, &frozen.form)?))
}

fn mapping(query: Query, at: &str, device: &str, volume: &Volume) -> Query {
    let number = |given: Option<u64>| given.filter(|number| *number > 0).map(|number| number.to_string());
    query
        .set(&format!("{at}.DeviceName"), device)
        .set(&format!("{at}.Ebs.DeleteOnTermination"), "true")
        .set(&format!("{at}.Ebs.VolumeSize"), volume.size.to_string())
        .set_some(&format!("{at}.Ebs.VolumeType"), volume.kind.as_ref().filter(|kind| !kind.is_empty()))
        .set_some(&format!("{at}.Ebs.Iops"), number(volume.iops))
        .set_some(&format!("{at}.Ebs.Throughput"), number(volume.throughput))
        .set_some(&format!("{at}.Ebs.Encrypted"), volume.encrypted.map(|encrypted| encrypted.to_string()))
        .set_some(&format!("{at}.Ebs.KmsKeyId"), volume.encryption_key.as_ref().filter(|key| !key.is_empty()))
}
