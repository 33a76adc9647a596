package main

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/tools/record"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/client-go/util/retry"

	"k8s.io/apimachinery/pkg/watch"
)

func (s session) clients() *kubernetes.Clientset {
	clients, err := kubernetes.NewForConfig(s.config)
	must("make clients", err)
	return clients
}

// protobuf is how controllers of Kubernetes itself ask.
func (s session) protobuf() *kubernetes.Clientset {
	config := rest.CopyConfig(s.config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = strings.Join([]string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON}, ",")
	clients, err := kubernetes.NewForConfig(config)
	must("make clients", err)
	return clients
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
}

func discoveryOf(s session) {
	found, err := discovery.NewDiscoveryClientForConfig(s.config)
	must("make a discovery client", err)
	_, lists, err := found.ServerGroupsAndResources()
	must("discover", err)
	wanted := map[string]bool{"v1/secrets": true, "v1/namespaces": true, "v1/nodes": true, "apps/v1/deployments": true, "coordination.k8s.io/v1/leases": true,
		"rbac.authorization.k8s.io/v1/clusterroles": true, "apiextensions.k8s.io/v1/customresourcedefinitions": true, "v1/pods/eviction": true, "v1/serviceaccounts/token": true}
	var lines []string
	for _, list := range lists {
		for _, resource := range list.APIResources {
			if wanted[list.GroupVersion+"/"+resource.Name] {
				lines = append(lines, fmt.Sprintf("%s/%s %s %v %v %v", list.GroupVersion, resource.Name, resource.Kind, resource.Namespaced, resource.ShortNames, resource.Verbs))
			}
		}
	}
	sort.Strings(lines)
	say("%s", strings.Join(lines, "\n"))
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(found))
	for _, kind := range []schema.GroupVersionKind{{Version: "v1", Kind: "Secret"}, {Group: "apps", Version: "v1", Kind: "Deployment"}, {Group: "nobody", Version: "v1", Kind: "Nothing"}} {
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			say("%s: %v", kind.Kind, err)
			continue
		}
		say("%s is %s, %s", kind.Kind, mapping.Resource.Resource, mapping.Scope.Name())
	}
	paths, err := found.OpenAPIV3().Paths()
	must("read what OpenAPI there is", err)
	say("OpenAPI of v1: %v", paths["api/v1"] != nil)
}

func typedClients(s session) {
	for name, clients := range map[string]*kubernetes.Clientset{"typed": s.clients()} {
		typedLife(s, name, clients)
	}
	typedLife(s, "protobuf", s.protobuf())
}

func typedLife(s session, name string, clients *kubernetes.Clientset) {
	maps := clients.CoreV1().ConfigMaps(s.namespace)
	made, err := maps.Create(s, configMap(name, map[string]string{"a": "1"}), metav1.CreateOptions{})
	must("create", err)
	say("%s made: %v uid=%v generation=%d managers=%v", name, made.Data, made.UID != "", made.Generation, managers(made.ManagedFields))
	made.Data["b"] = "2"
	changed, err := maps.Update(s, made, metav1.UpdateOptions{})
	must("update", err)
	say("changed: %v newer=%v", changed.Data, changed.ResourceVersion != made.ResourceVersion)
	same, err := maps.Update(s, changed, metav1.UpdateOptions{})
	must("update", err)
	say("the same again is no change: %v", same.ResourceVersion == changed.ResourceVersion)
	for kind, patch := range map[types.PatchType]string{types.MergePatchType: `{"data":{"c":"3"}}`} {
		patched, err := maps.Patch(s, name, kind, []byte(patch), metav1.PatchOptions{})
		must("patch", err)
		say("%s: %v", kind, patched.Data)
	}
	patched, err := maps.Patch(s, name, types.StrategicMergePatchType, []byte(`{"data":{"d":"4"},"metadata":{"finalizers":["clients/x"]}}`), metav1.PatchOptions{})
	must("patch", err)
	say("strategic: %v %v", patched.Data, patched.Finalizers)
	patched, err = maps.Patch(s, name, types.JSONPatchType, []byte(`[{"op":"remove","path":"/data/a"}]`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	must("patch", err)
	say("dry run: %v", patched.Data)
	uid := types.UID("another")
	err = maps.Delete(s, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	say("wrong uid: conflict=%v", apierrors.IsConflict(err))
	must("delete", maps.Delete(s, name, metav1.DeleteOptions{}))
	dying, err := maps.Get(s, name, metav1.GetOptions{})
	must("get", err)
	say("dying: %v grace=%v", dying.DeletionTimestamp != nil, *dying.DeletionGracePeriodSeconds)
	dying.Finalizers = nil
	_, err = maps.Update(s, dying, metav1.UpdateOptions{})
	must("let go", err)
	_, err = maps.Get(s, name, metav1.GetOptions{})
	say("gone: %v", apierrors.IsNotFound(err))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.namespace + "-" + name}}
	_, err = clients.CoreV1().Nodes().Create(s, node, metav1.CreateOptions{})
	must("make a node", err)
	node, err = clients.CoreV1().Nodes().Get(s, node.Name, metav1.GetOptions{})
	must("get a node", err)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "R", LastHeartbeatTime: metav1.Now()}}
	node, err = clients.CoreV1().Nodes().UpdateStatus(s, node, metav1.UpdateOptions{})
	must("tell a node's status", err)
	say("node: %v", node.Status.Conditions[0].Status)
	must("delete a node", clients.CoreV1().Nodes().Delete(s, node.Name, metav1.DeleteOptions{}))
}

func managers(all []metav1.ManagedFieldsEntry) []string {
	var names []string
	for _, entry := range all {
		names = append(names, fmt.Sprintf("%s/%s/%s", entry.Manager, entry.Operation, entry.Subresource))
	}
	sort.Strings(names)
	return names
}

func errorsOf(s session) {
	maps := s.clients().CoreV1().ConfigMaps(s.namespace)
	_, err := maps.Create(s, configMap("errors", nil), metav1.CreateOptions{})
	must("create", err)
	_, err = maps.Create(s, configMap("errors", nil), metav1.CreateOptions{})
	say("already exists: %v", apierrors.IsAlreadyExists(err))
	_, err = maps.Create(s, configMap("Not A Name", nil), metav1.CreateOptions{})
	say("invalid: %v", apierrors.IsInvalid(err))
	_, err = s.clients().CoreV1().ConfigMaps("no-such-namespace").Create(s, configMap("x", nil), metav1.CreateOptions{})
	say("no namespace: %v", apierrors.IsNotFound(err))
	_, err = maps.Create(s, configMap("large", map[string]string{"a": strings.Repeat("x", 4<<20)}), metav1.CreateOptions{})
	say("too large: %v", apierrors.IsRequestEntityTooLargeError(err))
	_, err = maps.Create(s, configMap("large", map[string]string{"a": strings.Repeat("x", 1<<20+1)}), metav1.CreateOptions{})
	say("a large value: invalid=%v", apierrors.IsInvalid(err))
	_, err = maps.List(s, metav1.ListOptions{LabelSelector: "a in ("})
	say("bad selector: %v", apierrors.IsBadRequest(err))
	_, err = maps.List(s, metav1.ListOptions{ResourceVersion: "999999999"})
	say("the future: timeout=%v cause=%v", apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err), apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge))
	as := rest.CopyConfig(s.config)
	as.Impersonate = rest.ImpersonationConfig{UserName: "nobody-in-particular"}
	nobody, err := kubernetes.NewForConfig(as)
	must("make a client", err)
	_, err = nobody.CoreV1().ConfigMaps(s.namespace).Get(s, "errors", metav1.GetOptions{})
	say("forbidden: %v: %v", apierrors.IsForbidden(err), err)
	review, err := s.clients().AuthorizationV1().SubjectAccessReviews().Create(s, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "nobody-in-particular",
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: s.namespace, Verb: "get", Resource: "configmaps"}}}, metav1.CreateOptions{})
	must("review", err)
	say("allowed: %v", review.Status.Allowed)
	stranger := rest.AnonymousClientConfig(s.config)
	stranger.BearerToken = "nonsense"
	unknown, err := kubernetes.NewForConfig(stranger)
	must("make a client", err)
	_, err = unknown.CoreV1().ConfigMaps(s.namespace).Get(s, "errors", metav1.GetOptions{})
	say("unauthorized: %v", apierrors.IsUnauthorized(err))
}

// Ten who count together, each beginning anew when another was quicker.
func conflicts(s session) {
	maps := s.clients().CoreV1().ConfigMaps(s.namespace)
	_, err := maps.Create(s, configMap("counter", map[string]string{"n": "0"}), metav1.CreateOptions{})
	must("create", err)
	backoff := retry.DefaultBackoff
	backoff.Steps = 100
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			for range 10 {
				must("count", retry.RetryOnConflict(backoff, func() error {
					counter, err := maps.Get(s, "counter", metav1.GetOptions{})
					if err != nil {
						return err
					}
					var n int
					fmt.Sscan(counter.Data["n"], &n)
					counter.Data["n"] = fmt.Sprint(n + 1)
					_, err = maps.Update(s, counter, metav1.UpdateOptions{})
					return err
				}))
			}
		})
	}
	group.Wait()
	counter, err := maps.Get(s, "counter", metav1.GetOptions{})
	must("get", err)
	say("counted to %s", counter.Data["n"])
}

func serverSideApply(s session) {
	maps := s.clients().CoreV1().ConfigMaps(s.namespace)
	wanted := applycorev1.ConfigMap("applied", s.namespace).WithData(map[string]string{"a": "1", "b": "2"}).WithLabels(map[string]string{"l": "m"})
	applied, err := maps.Apply(s, wanted, metav1.ApplyOptions{FieldManager: "first"})
	must("apply", err)
	say("applied: %v %v %v", applied.Data, applied.Labels, managers(applied.ManagedFields))
	other := applycorev1.ConfigMap("applied", s.namespace).WithData(map[string]string{"a": "another"})
	_, err = maps.Apply(s, other, metav1.ApplyOptions{FieldManager: "second"})
	say("conflict: %v: %v", apierrors.IsConflict(err), err)
	applied, err = maps.Apply(s, other, metav1.ApplyOptions{FieldManager: "second", Force: true})
	must("apply by force", err)
	say("forced: %v %v", applied.Data, managers(applied.ManagedFields))
	extracted, err := applycorev1.ExtractConfigMap(applied, "first")
	must("extract", err)
	say("the first still owns: %v %v", extracted.Data, extracted.Labels)
	applied, err = maps.Apply(s, applycorev1.ConfigMap("applied", s.namespace), metav1.ApplyOptions{FieldManager: "first"})
	must("apply nothing", err)
	say("without the first: %v %v %v", applied.Data, applied.Labels, managers(applied.ManagedFields))
}

func pages(s session) {
	maps := s.clients().CoreV1().ConfigMaps(s.namespace)
	for n := range 25 {
		object := configMap(fmt.Sprintf("page-%02d", n), nil)
		object.Labels = map[string]string{"pages": "yes"}
		_, err := maps.Create(s, object, metav1.CreateOptions{})
		must("create", err)
	}
	asked := 0
	list := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
		asked++
		return maps.List(s, options)
	}))
	list.PageSize = 10
	var names []string
	must("read all", list.EachListItem(s, metav1.ListOptions{LabelSelector: "pages=yes"}, func(object runtime.Object) error {
		names = append(names, object.(*corev1.ConfigMap).Name)
		return nil
	}))
	say("%d in order in %d pages: %s to %s", len(names), asked, names[0], names[len(names)-1])
	must("delete them", maps.DeleteCollection(s, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "pages=yes"}))
	left, err := maps.List(s, metav1.ListOptions{LabelSelector: "pages=yes"})
	must("list", err)
	say("left: %d", len(left.Items))
	partial, err := metadata.NewForConfig(s.config)
	must("make a metadata client", err)
	found, err := partial.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(s.namespace).Get(s, "applied", metav1.GetOptions{})
	must("get metadata", err)
	say("metadata: %s %s", found.Kind, found.Name)
}

func informersOf(s session) {
	clients := s.clients()
	maps := clients.CoreV1().ConfigMaps(s.namespace)
	_, err := maps.Create(s, configMap("seen-before", map[string]string{"n": "0"}), metav1.CreateOptions{})
	must("create", err)
	for _, name := range []string{"json", "protobuf"} {
		from := clients
		if name == "protobuf" {
			from = s.protobuf()
		}
		following, stop := context.WithCancel(s)
		factory := informers.NewSharedInformerFactoryWithOptions(from, 0, informers.WithNamespace(s.namespace), informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector("metadata.name", "seen").String()
		}))
		informer := factory.Core().V1().ConfigMaps().Informer()
		seen := &journal{}
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { seen.add("added %v", object.(*corev1.ConfigMap).Data) },
			UpdateFunc: func(_, object any) { seen.add("changed %v", object.(*corev1.ConfigMap).Data) },
			DeleteFunc: func(object any) { seen.add("deleted %v", object.(*corev1.ConfigMap).Data) },
		})
		must("follow", err)
		factory.StartWithContext(following)
		say("%s synced: %v", name, cache.WaitForCacheSync(following.Done(), informer.HasSynced))
		_, err = maps.Create(s, configMap("seen", map[string]string{"n": "0"}), metav1.CreateOptions{})
		must("create", err)
		for n := 1; n <= 3; n++ {
			_, err = maps.Update(s, configMap("seen", map[string]string{"n": fmt.Sprint(n)}), metav1.UpdateOptions{})
			must("update", err)
		}
		must("delete", maps.Delete(s, "seen", metav1.DeleteOptions{}))
		s.until("hear of it", func() bool { return seen.len() >= 5 })
		say("%s", strings.Join(seen.all(), "\n"))
		stop()
	}
	// Until something is so, from what there is on.
	watcher := &cache.ListWatch{
		ListWithContextFunc: func(c context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return maps.List(c, options)
		},
		WatchFuncWithContext: func(c context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return maps.Watch(c, options)
		},
	}
	limited, stop := context.WithTimeout(s, 30*time.Second)
	defer stop()
	go func() {
		_, err := maps.Update(s, configMap("seen-before", map[string]string{"n": "1"}), metav1.UpdateOptions{})
		must("update", err)
	}()
	event, err := watchtools.UntilWithSync(limited, watcher, &corev1.ConfigMap{}, nil, func(event watch.Event) (bool, error) {
		object := event.Object.(*corev1.ConfigMap)
		return object.Name == "seen-before" && object.Data["n"] == "1", nil
	})
	must("wait until", err)
	say("until: %v", event.Object.(*corev1.ConfigMap).Data)
	selected, err := labels.Parse("none=here")
	must("parse", err)
	quiet, err := maps.Watch(s, metav1.ListOptions{LabelSelector: selected.String(), TimeoutSeconds: new(int64(1))})
	must("watch", err)
	_, more := <-quiet.ResultChan()
	say("a quiet watch ends without an event: %v", !more)
	retrying, err := watchtools.NewRetryWatcherWithContext(s, event.Object.(*corev1.ConfigMap).ResourceVersion, watcher)
	must("watch again and again", err)
	must("delete", maps.Delete(s, "seen-before", metav1.DeleteOptions{}))
	for event := range retrying.ResultChan() {
		if event.Object.(*corev1.ConfigMap).Name == "seen-before" {
			say("from there on: %s", event.Type)
			break
		}
	}
	retrying.Stop()
}

var probes = schema.GroupVersionResource{Group: "clients.diff.dev", Version: "v1", Resource: "probes"}

// installProbes defines a kind of this program.
func (s session) installProbes() dynamic.Interface {
	client, err := dynamic.NewForConfig(s.config)
	must("make a dynamic client", err)
	object := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "probes.clients.diff.dev"},
		"spec": map[string]any{"group": probes.Group, "scope": "Namespaced", "names": map[string]any{"plural": "probes", "kind": "Probe"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
					"spec": map[string]any{"type": "object", "properties": map[string]any{"size": map[string]any{"type": "integer", "default": int64(3)}}}, "status": object}}}}}}}}
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	_, err = definitions.Create(s, definition, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		must("define a kind", err)
	}
	s.until("the kind is served", func() bool {
		_, err := client.Resource(probes).Namespace(s.namespace).List(s, metav1.ListOptions{})
		return err == nil
	})
	return client
}

func probe(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "clients.diff.dev/v1", "kind": "Probe", "metadata": map[string]any{"name": name}, "spec": spec}}
}

func customResources(s session) {
	client := s.installProbes()
	own := client.Resource(probes).Namespace(s.namespace)
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, s.namespace, nil)
	following, stop := context.WithCancel(s)
	defer stop()
	informer := factory.ForResource(probes).Informer()
	seen := &journal{}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { seen.add("added %v", object.(*unstructured.Unstructured).Object["spec"]) },
		UpdateFunc: func(_, object any) {
			seen.add("changed %v %v", object.(*unstructured.Unstructured).Object["spec"], object.(*unstructured.Unstructured).Object["status"])
		},
		DeleteFunc: func(object any) { seen.add("deleted") },
	})
	must("follow", err)
	factory.Start(following.Done())
	say("synced: %v", cache.WaitForCacheSync(following.Done(), informer.HasSynced))
	made, err := own.Create(s, probe("p", map[string]any{}), metav1.CreateOptions{})
	must("create", err)
	say("defaulted: %v generation=%d", made.Object["spec"], made.GetGeneration())
	_, err = own.Patch(s, "p", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{})
	say("strategic: unsupported=%v", apierrors.IsUnsupportedMediaType(err))
	made.Object["status"] = map[string]any{"phase": "Up"}
	changed, err := own.Update(s, made, metav1.UpdateOptions{})
	must("update", err)
	say("status by update: %v", changed.Object["status"])
	changed, err = own.UpdateStatus(s, made, metav1.UpdateOptions{})
	must("update the status", err)
	say("status: %v generation=%d", changed.Object["status"], changed.GetGeneration())
	applied, err := own.Apply(s, "p", probe("p", map[string]any{"size": int64(7)}), metav1.ApplyOptions{FieldManager: "applier", Force: true})
	must("apply", err)
	say("applied: %v generation=%d %v", applied.Object["spec"], applied.GetGeneration(), managers(applied.GetManagedFields()))
	must("delete", own.Delete(s, "p", metav1.DeleteOptions{}))
	s.until("hear of it", func() bool { return seen.len() >= 4 })
	say("%s", strings.Join(seen.all(), "\n"))
}

// Two candidates: the second leads when the first gives up.
func leaders(s session) {
	clients := s.clients()
	told := &journal{}
	candidate := func(name string, running context.Context) *sync.WaitGroup {
		lock, err := resourcelock.New(resourcelock.LeasesResourceLock, s.namespace, "leader", clients.CoreV1(), clients.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: name})
		must("make a lock", err)
		var group sync.WaitGroup
		group.Go(func() {
			leaderelection.RunOrDie(running, leaderelection.LeaderElectionConfig{Lock: lock, LeaseDuration: 4 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: 200 * time.Millisecond, ReleaseOnCancel: true,
				Callbacks: leaderelection.LeaderCallbacks{
					OnStartedLeading: func(context.Context) { told.add("%s leads", name) },
					OnStoppedLeading: func() { told.add("%s stops", name) },
				}})
		})
		return &group
	}
	first, stopFirst := context.WithCancel(s)
	one := candidate("first", first)
	s.until("the first leads", func() bool { return told.len() == 1 })
	second, stopSecond := context.WithCancel(s)
	two := candidate("second", second)
	time.Sleep(time.Second)
	say("meanwhile: %v", told.all())
	stopFirst()
	one.Wait()
	s.until("the second leads", func() bool { return told.len() >= 3 })
	lease, err := clients.CoordinationV1().Leases(s.namespace).Get(s, "leader", metav1.GetOptions{})
	must("get the lease", err)
	say("then: %v; the lease is %s's after %d changes", told.all(), *lease.Spec.HolderIdentity, *lease.Spec.LeaseTransitions)
	stopSecond()
	two.Wait()
}

func eventsOf(s session) {
	clients := s.clients()
	object, err := clients.CoreV1().ConfigMaps(s.namespace).Get(s, "applied", metav1.GetOptions{})
	must("get", err)
	object.Kind, object.APIVersion = "ConfigMap", "v1"
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(clientSink{s, clients})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "clients"})
	for range 3 {
		recorder.Event(object, corev1.EventTypeWarning, "Again", "it happened again")
	}
	s.until("the event counts to three", func() bool {
		list, err := clients.CoreV1().Events(s.namespace).List(s, metav1.ListOptions{FieldSelector: "reason=Again,involvedObject.name=applied"})
		must("list events", err)
		return len(list.Items) == 1 && list.Items[0].Count == 3
	})
	say("one event, three times")
	broadcaster.Shutdown()
	newer := events.NewBroadcaster(&events.EventSinkImpl{Interface: clients.EventsV1()})
	must("record", newer.StartRecordingToSinkWithContext(s))
	recorded := newer.NewRecorder(scheme.Scheme, "clients")
	recorded.Eventf(object, nil, corev1.EventTypeNormal, "Newer", "Doing", "it is told in the newer way")
	var found *eventsv1.Event
	s.until("the newer event is there", func() bool {
		list, err := clients.EventsV1().Events(s.namespace).List(s, metav1.ListOptions{FieldSelector: "reason=Newer"})
		must("list events", err)
		if len(list.Items) == 1 {
			found = &list.Items[0]
		}
		return found != nil
	})
	say("newer: %s %s %s", found.Note, found.Action, found.Regarding.Name)
	newer.Shutdown()
}

// clientSink is what the recorder of client-go writes to.
type clientSink struct {
	session
	clients *kubernetes.Clientset
}

func (c clientSink) Create(event *corev1.Event) (*corev1.Event, error) {
	return c.clients.CoreV1().Events(event.Namespace).CreateWithEventNamespaceWithContext(c, event)
}

func (c clientSink) Update(event *corev1.Event) (*corev1.Event, error) {
	return c.clients.CoreV1().Events(event.Namespace).UpdateWithEventNamespaceWithContext(c, event)
}

func (c clientSink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	return c.clients.CoreV1().Events(event.Namespace).PatchWithEventNamespaceWithContext(c, event, data)
}

func accounts(s session) {
	clients := s.clients()
	s.until("the default account is there", func() bool {
		_, err := clients.CoreV1().ServiceAccounts(s.namespace).Get(s, "default", metav1.GetOptions{})
		return err == nil
	})
	say("there is a default account")
	token, err := clients.CoreV1().ServiceAccounts(s.namespace).CreateToken(s, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must("ask for a token", err)
	own := rest.AnonymousClientConfig(s.config)
	own.BearerToken = token.Status.Token
	account, err := kubernetes.NewForConfig(own)
	must("make a client", err)
	self, err := account.AuthenticationV1().SelfSubjectReviews().Create(s, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	must("ask who I am", err)
	say("as %s in %v", self.Status.UserInfo.Username, self.Status.UserInfo.Groups)
	review, err := clients.AuthenticationV1().TokenReviews().Create(s, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token.Status.Token}}, metav1.CreateOptions{})
	must("review the token", err)
	say("authenticated: %v %s", review.Status.Authenticated, review.Status.User.Username)
	_, err = account.CoreV1().Secrets(s.namespace).List(s, metav1.ListOptions{})
	say("secrets are forbidden: %v", apierrors.IsForbidden(err))
}
