//go:build tools

// Package kube pins the real API server that the differential suite and the scenarios compare the embedded one with.
// Nothing is compiled from here: tests/kube/build.sh builds the commands below from the pinned modules.
package kube

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
)
