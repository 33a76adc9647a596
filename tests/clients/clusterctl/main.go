// Command clusterctl is the one of Cluster API, built from its module: releases of it are not Go programs that can be installed.
package main

import "sigs.k8s.io/cluster-api/cmd/clusterctl/cmd"

func main() { cmd.Execute() }
