// Command clients does with an API server what programs built on client-go and controller-runtime do with one, and prints
// what it learned: lines that are the same whoever serves. The differential suite runs it against the embedded server and
// against kube-apiserver and compares what it prints.
//
// The kubeconfig is named by KUBECONFIG; the namespace, which must exist, by the only argument.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// session is what every part gets.
type session struct {
	context.Context
	config    *rest.Config
	namespace string
}

// must ends the program with what could not be done.
func must(what string, err error) {
	if err != nil {
		fmt.Printf("FAILED %s: %v\n", what, err)
		os.Exit(1)
	}
}

func say(format string, arguments ...any) { fmt.Printf(format+"\n", arguments...) }

// until waits for something that others do.
func (s session) until(what string, done func() bool) {
	deadline := time.Now().Add(60 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			must(what, fmt.Errorf("it did not come to pass in a minute"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// journal collects what several goroutines see.
type journal struct {
	sync.Mutex
	lines []string
}

func (j *journal) add(format string, arguments ...any) {
	j.Lock()
	defer j.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, arguments...))
}

func (j *journal) len() int {
	j.Lock()
	defer j.Unlock()
	return len(j.lines)
}

func (j *journal) all() []string {
	j.Lock()
	defer j.Unlock()
	return append([]string(nil), j.lines...)
}

func main() {
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	must("read the kubeconfig", err)
	config.QPS, config.Burst = 1000, 1000
	context, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	s := session{Context: context, config: config, namespace: os.Args[1]}
	for _, part := range []struct {
		name string
		do   func(session)
	}{
		{"discovery", discoveryOf},
		{"typed clients", typedClients},
		{"errors", errorsOf},
		{"conflicts", conflicts},
		{"server-side apply", serverSideApply},
		{"pages", pages},
		{"informers", informersOf},
		{"custom resources", customResources},
		{"leader election", leaders},
		{"events", eventsOf},
		{"accounts", accounts},
		{"controller-runtime client", runtimeClient},
		{"controller", controllerOf},
	} {
		say("== %s", part.name)
		part.do(s)
	}
}
