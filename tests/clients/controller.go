package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func newProbe(namespace, name string) *unstructured.Unstructured {
	object := probe(name, map[string]any{})
	object.SetNamespace(namespace)
	return object
}

func runtimeClient(s session) {
	own, err := client.New(s.config, client.Options{Scheme: scheme.Scheme})
	must("make a client", err)
	object := configMap("runtime", map[string]string{"a": "1"})
	object.Namespace = s.namespace
	must("create", own.Create(s, object))
	before := object.DeepCopy()
	object.Labels = map[string]string{"x": "y"}
	must("patch", own.Patch(s, object, client.MergeFrom(before)))
	stale := before.DeepCopy()
	stale.Data["a"] = "2"
	err = own.Patch(s, stale, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	say("optimistic lock: conflict=%v", apierrors.IsConflict(err))
	result, err := controllerutil.CreateOrUpdate(s, own, object, func() error { object.Data["b"] = "2"; return nil })
	must("create or update", err)
	say("create or update: %s", result)
	result, err = controllerutil.CreateOrPatch(s, own, object, func() error { object.Data["c"] = "3"; return nil })
	must("create or patch", err)
	say("create or patch: %s %v %v", result, object.Data, object.Labels)
	list := &corev1.ConfigMapList{}
	must("list", own.List(s, list, client.InNamespace(s.namespace), client.MatchingLabels{"x": "y"}, client.Limit(1)))
	say("listed: %d more=%v", len(list.Items), list.Continue != "")
	partial := &metav1.PartialObjectMetadata{}
	partial.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	must("get metadata", own.Get(s, client.ObjectKeyFromObject(object), partial))
	say("metadata: %v", partial.Labels)
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "runtime", Namespace: s.namespace}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}
	must("create a deployment", own.Create(s, deployment, client.DryRunAll))
	say("dry run: replicas=%d strategy=%s pull=%s", *deployment.Spec.Replicas, deployment.Spec.Strategy.Type, deployment.Spec.Template.Spec.Containers[0].ImagePullPolicy)
	must("delete", own.Delete(s, object, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	say("not found is nothing: %v", client.IgnoreNotFound(own.Delete(s, object)))
}

// A controller as they are written with controller-runtime: a finalizer, a child that it owns, a status, a manager with an
// elected leader and a cache with an index.
func controllerOf(s session) {
	s.installProbes()
	manager, err := ctrl.NewManager(s.config, ctrl.Options{Scheme: scheme.Scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Cache:          cache.Options{DefaultNamespaces: map[string]cache.Config{s.namespace: {}}},
		LeaderElection: true, LeaderElectionID: "clients", LeaderElectionNamespace: s.namespace, LeaderElectionReleaseOnCancel: true})
	must("make a manager", err)
	kind := newProbe("", "")
	must("index", manager.GetFieldIndexer().IndexField(s, &corev1.ConfigMap{}, "size", func(object client.Object) []string {
		return []string{object.(*corev1.ConfigMap).Data["size"]}
	}))
	told := &journal{}
	must("build", ctrl.NewControllerManagedBy(manager).Named("probes").For(kind).Owns(&corev1.ConfigMap{}).Complete(reconcile.Func(func(c context.Context, request reconcile.Request) (reconcile.Result, error) {
		return reconcileProbe(c, manager.GetClient(), manager.GetScheme(), request, told)
	})))
	running, stop := context.WithCancel(s)
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(running) }()
	say("cached: %v", manager.GetCache().WaitForCacheSync(running))
	own := manager.GetClient()
	must("create", own.Create(s, newProbe(s.namespace, "one")))
	current := newProbe(s.namespace, "one")
	ready := func(size int64) func() bool {
		return func() bool {
			must("get", manager.GetAPIReader().Get(s, client.ObjectKeyFromObject(current), current))
			at, _, _ := unstructured.NestedInt64(current.Object, "status", "size")
			return at == size
		}
	}
	s.until("it is ready", ready(3))
	child := &corev1.ConfigMap{}
	must("get the child", manager.GetAPIReader().Get(s, client.ObjectKeyFromObject(current), child))
	say("ready: %v finalizers=%v child=%v owner=%s controller=%v", current.Object["status"], current.GetFinalizers(), child.Data, child.OwnerReferences[0].Kind, *child.OwnerReferences[0].Controller)
	must("resize", retryOnConflict(func() error {
		must("get", manager.GetAPIReader().Get(s, client.ObjectKeyFromObject(current), current))
		must("set", unstructured.SetNestedField(current.Object, int64(5), "spec", "size"))
		return own.Update(s, current)
	}))
	s.until("it is ready again", ready(5))
	// What is changed or deleted by others is put right.
	must("delete the child", own.Delete(s, child))
	s.until("the child is made again", func() bool {
		again := &corev1.ConfigMap{}
		err := manager.GetAPIReader().Get(s, client.ObjectKeyFromObject(current), again)
		return err == nil && again.UID != child.UID && again.Data["size"] == "5"
	})
	var indexed corev1.ConfigMapList
	s.until("the index knows it", func() bool {
		must("list by index", own.List(s, &indexed, client.InNamespace(s.namespace), client.MatchingFields{"size": "5"}))
		return len(indexed.Items) == 1
	})
	say("made again: %v", indexed.Items[0].Data)
	must("delete", own.Delete(s, current, client.PropagationPolicy(metav1.DeletePropagationForeground)))
	s.until("it is gone", func() bool {
		return apierrors.IsNotFound(manager.GetAPIReader().Get(s, client.ObjectKeyFromObject(current), current))
	})
	s.until("the child is gone", func() bool {
		return apierrors.IsNotFound(manager.GetAPIReader().Get(s, client.ObjectKeyFromObject(current), child))
	})
	say("gone, and the child with it; finalized=%v", strings.Contains(strings.Join(told.all(), ","), "finalized"))
	stop()
	must("end", <-ended)
}

func retryOnConflict(do func() error) error {
	for {
		if err := do(); !apierrors.IsConflict(err) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func reconcileProbe(c context.Context, own client.Client, known *runtime.Scheme, request reconcile.Request, told *journal) (reconcile.Result, error) {
	object := newProbe("", "")
	if err := own.Get(c, request.NamespacedName, object); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	const finalizer = "clients.diff.dev/finalizer"
	if !object.GetDeletionTimestamp().IsZero() {
		if controllerutil.RemoveFinalizer(object, finalizer) {
			told.add("finalized")
			return reconcile.Result{}, client.IgnoreNotFound(own.Update(c, object))
		}
		return reconcile.Result{}, nil
	}
	if controllerutil.AddFinalizer(object, finalizer) {
		return reconcile.Result{}, own.Update(c, object)
	}
	size, _, err := unstructured.NestedInt64(object.Object, "spec", "size")
	if err != nil {
		return reconcile.Result{}, err
	}
	child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: object.GetName(), Namespace: object.GetNamespace()}}
	_, err = controllerutil.CreateOrUpdate(c, own, child, func() error {
		child.Data = map[string]string{"size": fmt.Sprint(size)}
		return controllerutil.SetControllerReference(object, child, known)
	})
	if err != nil {
		return reconcile.Result{}, err
	}
	before := object.DeepCopy()
	if err := unstructured.SetNestedField(object.Object, size, "status", "size"); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, own.Status().Patch(c, object, client.MergeFrom(before))
}
